// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_LAUNCHER_HOST_MACHINE_H_
#define TANDEM_LAUNCHER_HOST_MACHINE_H_

// The facts about a machine that `tandem doctor` checks. It is an interface, so that tests can describe any
// machine.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tandem::launcher {

// Not thread-safe. No call changes the machine: sockets, files and processes that a call makes are gone
// when it returns.
class Machine {
 public:
  virtual ~Machine() = default;

  // Returns the file's text without white space at its ends. Returns NotFound if there is no such file.
  virtual absl::StatusOr<std::string> ReadFile(const std::string& path) const = 0;
  // Returns the value of an environment variable.
  virtual std::optional<std::string> Variable(const std::string& name) const = 0;

  struct Interface {
    std::string name;
    bool up = false, loopback = false;
    std::vector<std::string> addresses;  // numeric
  };
  virtual std::vector<Interface> Interfaces() const = 0;
  virtual std::string HostName() const = 0;
  // Returns the numeric addresses of `host`. Blocks for as long as the name lookup takes.
  virtual absl::StatusOr<std::vector<std::string>> Resolve(const std::string& host) const = 0;
  // Returns OK if a server can listen at TCP port `port` of all interfaces; 0: at any port.
  virtual absl::Status CanListen(int port) const = 0;

  struct FileSystem {
    uint64_t total_bytes = 0, free_bytes = 0;
  };
  virtual absl::StatusOr<FileSystem> StatFileSystem(const std::string& path) const = 0;
  // Returns OK if anonymous memory (memfd_create) can be created and mapped, as the shm backend does.
  virtual absl::Status CanMapMemory() const = 0;

  enum class Resource { kOpenFiles, kProcesses, kLockedMemory, kCore };
  struct Limit {
    uint64_t soft = 0, hard = 0;  // kUnlimited: no limit
  };
  static constexpr uint64_t kUnlimited = ~uint64_t{0};
  virtual Limit GetLimit(Resource resource) const = 0;

  // Processors that this process's affinity mask allows, and processors that are online.
  virtual int UsableCores() const = 0;
  virtual int OnlineCores() const = 0;
  // Returns the SIMD targets that this program contains and the processor supports, the best one first.
  virtual std::vector<std::string> SimdTargets() const = 0;

  // Returns the path of the program of that name in PATH, or NotFound.
  virtual absl::StatusOr<std::string> FindProgram(const std::string& name) const = 0;
  // Runs a program and returns what it prints to stdout and stderr. Returns DeadlineExceeded after 5 s.
  virtual absl::StatusOr<std::string> RunProgram(const std::vector<std::string>& command) const = 0;

  struct Cuda {
    int driver_version = 0;  // 12040: CUDA 12.4
    std::vector<std::string> gpus;
  };
  // Returns NotFound if there is no libcuda.so.1, and another error if it does not work.
  virtual absl::StatusOr<Cuda> FindCuda() const = 0;
  struct GpuLibrary {
    int version = 0;   // 21805: NCCL 2.18.5; 12040: CUDA runtime 12.4
    std::string path;  // the file that was loaded
  };
  // Return the NCCL and the CUDA runtime that backend nccl takes, or NotFound if there is none.
  virtual absl::StatusOr<GpuLibrary> FindNccl() const = 0;
  virtual absl::StatusOr<GpuLibrary> FindCudaRuntime() const = 0;

  // The version of a library that this program was built with and the one that it runs with; "": not known.
  struct Version {
    std::string library, built, running;
  };
  virtual std::vector<Version> Versions() const = 0;
  virtual bool BuiltWithMpi() const = 0;
};

// Returns the machine that this process runs on.
std::unique_ptr<Machine> ThisMachine();

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_HOST_MACHINE_H_
