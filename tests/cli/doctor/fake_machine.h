// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_CLI_DOCTOR_FAKE_MACHINE_H_
#define TANDEM_TESTS_CLI_DOCTOR_FAKE_MACHINE_H_

#include <map>
#include <set>
#include <string>
#include <vector>

#include "launcher/host/machine.h"

namespace tandem::cli {

// A machine on which every check is OK. Tests change the facts that they are about.
struct FakeMachine final : launcher::Machine {
  std::map<std::string, std::string> files = {
      {"/proc/meminfo", "MemTotal:       16000000 kB\nMemFree: 1 kB\nMemAvailable:   12000000 kB"},
      {"/proc/cpuinfo", "processor\t: 0\nmodel name\t: Fast Processor 9000\nflags : x"},
      {"/proc/self/cgroup", "0::/job"},
      {"/proc/sys/net/ipv4/ip_local_port_range", "32768\t60999"},
      {"/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never"},
      {"/sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc"},
      {"/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance"},
  };
  std::map<std::string, std::string> variables;
  std::vector<Interface> interfaces = {{"lo", true, true, {"127.0.0.1", "::1"}},
                                       {"eth0", true, false, {"10.0.0.2", "fe80::2"}}};
  std::string host = "node1";
  absl::StatusOr<std::vector<std::string>> addresses = std::vector<std::string>{"10.0.0.2"};
  std::set<int> taken_ports;
  absl::StatusOr<FileSystem> shm = FileSystem{8ull << 30, 8ull << 30};
  absl::Status memfd;
  std::map<Resource, Limit> limits = {{Resource::kOpenFiles, {65536, 1048576}},
                                      {Resource::kProcesses, {60000, 60000}},
                                      {Resource::kLockedMemory, {8 << 20, 8 << 20}},
                                      {Resource::kCore, {kUnlimited, kUnlimited}}};
  int cores = 8;
  std::vector<std::string> simd = {"AVX2", "SSE4", "SSSE3"};
  std::map<std::string, std::string> programs = {{"mpirun", "mpirun (Open MPI) 4.1.4\n\nReport bugs"}};
  absl::StatusOr<Cuda> cuda = absl::NotFoundError("libcuda.so.1");
  absl::StatusOr<GpuLibrary> nccl = absl::NotFoundError("libnccl.so.2");
  absl::StatusOr<GpuLibrary> cuda_runtime = absl::NotFoundError("libcudart");
  std::vector<Version> versions = {{"glibc", "2.36", "2.36"}};
  bool mpi = true;

  absl::StatusOr<std::string> ReadFile(const std::string& path) const override {
    const auto found = files.find(path);
    if (found == files.end()) return absl::NotFoundError(path);
    return found->second;
  }
  std::optional<std::string> Variable(const std::string& name) const override {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional<std::string>(found->second);
  }
  std::vector<Interface> Interfaces() const override { return interfaces; }
  std::string HostName() const override { return host; }
  absl::StatusOr<std::vector<std::string>> Resolve(const std::string&) const override { return addresses; }
  absl::Status CanListen(int port) const override {
    return taken_ports.count(port) == 0 ? absl::OkStatus() : absl::UnavailableError("Address already in use");
  }
  absl::StatusOr<FileSystem> StatFileSystem(const std::string&) const override { return shm; }
  absl::Status CanMapMemory() const override { return memfd; }
  Limit GetLimit(Resource resource) const override { return limits.at(resource); }
  int UsableCores() const override { return cores; }
  int OnlineCores() const override { return 8; }
  std::vector<std::string> SimdTargets() const override { return simd; }
  absl::StatusOr<std::string> FindProgram(const std::string& name) const override {
    if (programs.count(name) == 0) return absl::NotFoundError(name);
    return "/usr/bin/" + name;
  }
  absl::StatusOr<std::string> RunProgram(const std::vector<std::string>& command) const override {
    const std::string& text = programs.at(command[0].substr(9));
    if (text.empty()) return absl::DeadlineExceededError("it had not ended after 5s");
    return text;
  }
  absl::StatusOr<Cuda> FindCuda() const override { return cuda; }
  absl::StatusOr<GpuLibrary> FindNccl() const override { return nccl; }
  absl::StatusOr<GpuLibrary> FindCudaRuntime() const override { return cuda_runtime; }
  std::vector<Version> Versions() const override { return versions; }
  bool BuiltWithMpi() const override { return mpi; }
};

}  // namespace tandem::cli

#endif  // TANDEM_TESTS_CLI_DOCTOR_FAKE_MACHINE_H_
