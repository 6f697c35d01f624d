// SPDX-License-Identifier: Apache-2.0
#include "cli/doctor/checks.h"

#include <string>

#include "base/json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/cli/doctor/fake_machine.h"

namespace tandem::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using Resource = launcher::Machine::Resource;

class ChecksTest : public ::testing::Test {
 protected:
  // Returns the checks that are not OK.
  Checks Problems() {
    Checks problems;
    for (const Check& check : CheckAll(machine_)) {
      if (check.level != Level::kOk) problems.push_back(check);
    }
    return problems;
  }
  void ExpectOneProblem(Level level, const std::string& name, const std::string& fact,
                        const std::string& advice) {
    const Checks problems = Problems();
    ASSERT_THAT(problems, SizeIs(1)) << ChecksText(problems);
    EXPECT_EQ(problems[0].level, level);
    EXPECT_EQ(problems[0].name, name);
    EXPECT_THAT(problems[0].fact, HasSubstr(fact));
    EXPECT_THAT(problems[0].advice, HasSubstr(advice));
  }
  Check Named(const std::string& name) {
    for (const Check& check : CheckAll(machine_)) {
      if (check.name == name) return check;
    }
    ADD_FAILURE() << "there is no check " << name;
    return {};
  }

  FakeMachine machine_;
};

TEST_F(ChecksTest, AGoodMachineIsPraised) {
  const Checks checks = CheckAll(machine_);
  EXPECT_THAT(Problems(), IsEmpty()) << ChecksText(checks);
  EXPECT_FALSE(AnyFails(checks));
  EXPECT_THAT(
      ChecksText(checks),
      AllOf(HasSubstr("interface eth0"), HasSubstr("up, 10.0.0.2"), HasSubstr("node1 is 10.0.0.2 (eth0)"),
            HasSubstr("Fast Processor 9000"), HasSubstr("AVX2 (has AVX2 SSE4 SSSE3)"),
            HasSubstr("mpirun (Open MPI) 4.1.4"), HasSubstr(" 0 WARN, 0 FAIL"), Not(HasSubstr("->"))));
}

TEST_F(ChecksTest, TheTrapOf127011IsNamedWithTheWayOut) {
  machine_.addresses = {{"127.0.1.1"}};
  ExpectOneProblem(Level::kWarn, "host name", "node1 is 127.0.1.1: a loopback address",
                   "give 10.0.0.2 (eth0)");
}

TEST_F(ChecksTest, AloneALoopbackNameIsNoTrap) {
  machine_.addresses = {{"127.0.1.1"}};
  machine_.interfaces.pop_back();
  ExpectOneProblem(Level::kWarn, "other hosts", "no interface", "fine for jobs on this machine alone");
}

TEST_F(ChecksTest, NamesThatLeadNowhereAreToldWithReason) {
  machine_.addresses = absl::UnavailableError("Name or service not known");
  ExpectOneProblem(Level::kWarn, "host name", "Name or service not known", "/etc/hosts");
  machine_.addresses = {{"10.9.9.9"}};
  ExpectOneProblem(Level::kWarn, "host name", "10.9.9.9, which no interface here has", "MASTER_ADDR");
}

TEST_F(ChecksTest, WithoutLoopbackOrPortsNothingWorks) {
  machine_.interfaces[0].up = false;
  ExpectOneProblem(Level::kFail, "loopback", "no loopback", "ip link set lo up");
  machine_.interfaces[0].up = true;
  machine_.taken_ports = {0};
  ExpectOneProblem(Level::kFail, "listening", "in use", "limit of open files");
  EXPECT_TRUE(AnyFails(CheckAll(machine_)));
}

TEST_F(ChecksTest, MasterPortIsTried) {
  machine_.variables["MASTER_PORT"] = "29500";
  EXPECT_EQ(Named("MASTER_PORT").fact, "29500 is free");
  machine_.taken_ports = {29500};
  ExpectOneProblem(Level::kWarn, "MASTER_PORT", "29500: Address already in use", "ss -ltnp");
  machine_.taken_ports.clear();
  machine_.variables["MASTER_PORT"] = "40000";
  ExpectOneProblem(Level::kWarn, "MASTER_PORT", "among the ephemeral ports", "below 32768");
  machine_.variables["MASTER_PORT"] = "port";
  ExpectOneProblem(Level::kFail, "MASTER_PORT", "'port' is no port", "1 to 65535");
}

TEST_F(ChecksTest, FewEphemeralPortsAreTold) {
  machine_.files["/proc/sys/net/ipv4/ip_local_port_range"] = "60000\t60999";
  ExpectOneProblem(Level::kWarn, "ephemeral ports", "60000 to 60999", "sysctl");
}

TEST_F(ChecksTest, MemoryThatIsShortIsTold) {
  machine_.shm = launcher::Machine::FileSystem{64 << 20, 64 << 20};
  ExpectOneProblem(Level::kWarn, "/dev/shm", "64.0 MiB of 64.0 MiB free", "--shm-size");
  machine_.shm = FakeMachine().shm;
  machine_.memfd = absl::UnavailableError("memfd_create fails: Function not implemented");
  ExpectOneProblem(Level::kFail, "memfd", "not implemented", "backend tcp");
  machine_.memfd = absl::OkStatus();
  machine_.files["/proc/meminfo"] = "MemTotal: 16000000 kB\nMemAvailable: 1000 kB";
  ExpectOneProblem(Level::kWarn, "memory", "1000.0 KiB of 15.3 GiB", "see what else");
}

TEST_F(ChecksTest, TheLowestLimitOfAllControlGroupsCounts) {
  machine_.files["/proc/self/cgroup"] = "0::/pod/container";
  machine_.files["/sys/fs/cgroup/pod/container/memory.max"] = "max";
  machine_.files["/sys/fs/cgroup/pod/memory.max"] = "536870912";
  ExpectOneProblem(Level::kWarn, "cgroup limit", "512.0 MiB", "--memory");
  machine_.files["/sys/fs/cgroup/pod/memory.max"] = "max";
  EXPECT_EQ(Named("cgroup limit").fact, "none");

  machine_.files["/proc/self/cgroup"] = "4:memory:/job\n1:cpu,cpuacct:/job\n0::/";
  machine_.files["/sys/fs/cgroup/memory/job/memory.limit_in_bytes"] = "9223372036854771712";
  EXPECT_EQ(Named("cgroup limit").fact, "none");
  machine_.files["/sys/fs/cgroup/memory/job/memory.limit_in_bytes"] = "17179869184";
  EXPECT_EQ(Named("cgroup limit").fact, "16.0 GiB");
}

TEST_F(ChecksTest, AQuotaBelowTheCoresIsTold) {
  machine_.files["/sys/fs/cgroup/job/cpu.max"] = "250000 100000";
  ExpectOneProblem(Level::kWarn, "cores", "8 usable of 8, quota 2.5", "at most 2 rank(s)");
  machine_.cores = 2;
  EXPECT_THAT(Problems(), IsEmpty());
  machine_.files.erase("/sys/fs/cgroup/job/cpu.max");
  machine_.files["/proc/self/cgroup"] = "1:cpu,cpuacct:/job";
  machine_.files["/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us"] = "50000";
  machine_.files["/sys/fs/cgroup/cpu/job/cpu.cfs_period_us"] = "100000";
  ExpectOneProblem(Level::kWarn, "cores", "quota 0.5", "at most 1 rank(s)");
  machine_.files["/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us"] = "-1";
  EXPECT_THAT(Problems(), IsEmpty());
}

TEST_F(ChecksTest, LimitsThatAreLowAreToldWithTheCommand) {
  machine_.limits[Resource::kOpenFiles] = {512, 4096};
  ExpectOneProblem(Level::kWarn, "open files", "512 (at most 4096)", "ulimit -n 4096");
  machine_.limits[Resource::kOpenFiles] = {64, 64};
  ExpectOneProblem(Level::kFail, "open files", "64", "limits.conf");
  machine_.limits = FakeMachine().limits;
  machine_.limits[Resource::kProcesses] = {100, 100};
  ExpectOneProblem(Level::kWarn, "processes", "100", "ulimit -u");
  machine_.limits = FakeMachine().limits;
  machine_.limits[Resource::kCore] = {0, 0};
  EXPECT_THAT(Named("core dumps").fact, HasSubstr("none"));
  machine_.files["/sys/class/infiniband_verbs/abi_version"] = "6";
  ExpectOneProblem(Level::kWarn, "locked memory", "8.0 MiB", "ulimit -l unlimited");
}

TEST_F(ChecksTest, ASlowProcessorIsTold) {
  machine_.simd = {"SSE4", "SSSE3"};
  ExpectOneProblem(Level::kWarn, "SIMD", "SSE4", "-cpu host");
  machine_.simd = {"NEON"};
  machine_.files["/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"] = "powersave";
  ExpectOneProblem(Level::kWarn, "governor", "powersave", "performance");
  machine_.files.erase("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
  EXPECT_THAT(Problems(), IsEmpty());
  machine_.files["/sys/devices/system/clocksource/clocksource0/current_clocksource"] = "hpet";
  ExpectOneProblem(Level::kWarn, "clock source", "hpet", "TSC");
}

TEST_F(ChecksTest, HugePagesThatAreOffAreTold) {
  machine_.files["/sys/kernel/mm/transparent_hugepage/enabled"] = "always madvise [never]";
  ExpectOneProblem(Level::kWarn, "huge pages", "never", "echo madvise");
}

TEST_F(ChecksTest, MpirunMustFitTheBackend) {
  machine_.programs["mpirun"] = "HYDRA build details:\n    Version: 4.0.2";
  ExpectOneProblem(Level::kWarn, "mpirun", "HYDRA", "mpirun.openmpi");
  machine_.programs["mpirun"] = "";  // hangs
  ExpectOneProblem(Level::kWarn, "mpirun", "had not ended", "reinstall");
  machine_.programs.clear();
  ExpectOneProblem(Level::kWarn, "mpirun", "not in PATH", "openmpi-bin");
  machine_.mpi = false;
  EXPECT_THAT(Problems(), IsEmpty());
}

TEST_F(ChecksTest, GpusWithoutNcclAreTold) {
  using Library = launcher::Machine::GpuLibrary;
  machine_.cuda = launcher::Machine::Cuda{12040, {"H100"}};
  machine_.nccl = Library{21805, "/lib/libnccl.so.2"};
  ExpectOneProblem(Level::kWarn, "CUDA runtime", "none", "TANDEM_CUDA_LIBRARY_PATH");
  machine_.cuda_runtime = Library{13000, "/lib/libcudart.so.13"};
  ExpectOneProblem(Level::kWarn, "CUDA runtime", "13.0", "newer than the driver");
  machine_.cuda_runtime = Library{12060, "/lib/libcudart.so.12"};
  EXPECT_EQ(Named("CUDA runtime").fact, "12.6: /lib/libcudart.so.12");
  machine_.nccl = absl::NotFoundError("libnccl.so.2");
  ExpectOneProblem(Level::kWarn, "NCCL", "none", "libnccl2");
  machine_.nccl = Library{21805, "/lib/libnccl.so.2"};
  EXPECT_EQ(Named("NCCL").fact, "2.18.5: /lib/libnccl.so.2");
  EXPECT_EQ(Named("CUDA driver").fact, "CUDA 12.4, 1 GPU: H100");
  EXPECT_THAT(Problems(), IsEmpty());
  machine_.nccl = Library{2804, "/lib/libnccl.so.2"};
  ExpectOneProblem(Level::kWarn, "NCCL", "2.8.4", "2.14");
  machine_.nccl = Library{21805, "/lib/libnccl.so.2"};
  machine_.cuda = absl::UnavailableError("cuInit fails: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)");
  ExpectOneProblem(Level::kWarn, "CUDA driver", "803", "nvidia-smi");
  machine_.cuda = launcher::Machine::Cuda{12040, {}};
  ExpectOneProblem(Level::kWarn, "CUDA driver", "0 GPUs", "CUDA_VISIBLE_DEVICES");
}

TEST_F(ChecksTest, ALibraryOfAnotherVersionIsTold) {
  machine_.versions = {{"glibc", "2.36", "2.31"}, {"Gloo", "", ""}};
  ExpectOneProblem(Level::kWarn, "glibc", "2.31, built with 2.36", "build Tandem again");
  EXPECT_THAT(Named("Gloo").fact, HasSubstr("does not tell"));
}

TEST_F(ChecksTest, TheVersionOfGrpcIsToldWithWhatItMeans) {
  machine_.versions = {{"gRPC", "1.51.1", "1.51.1"}};
  ExpectOneProblem(Level::kWarn, "gRPC", "1.51.1", "CVE-2023-33953");
  EXPECT_THAT(Named("gRPC").advice, AllOf(HasSubstr("must not reach a port"), HasSubstr("docs/security.md"),
                                          Not(HasSubstr("--max-connections"))));
  machine_.versions = {{"gRPC", "1.59.1", "1.59.1"}};
  EXPECT_THAT(Named("gRPC").advice, AllOf(HasSubstr("CVE-2023-44487"), HasSubstr("--max-connections")));
  machine_.versions = {{"gRPC", "1.74.0", "1.74.0"}};
  EXPECT_THAT(Named("gRPC").advice, AllOf(Not(HasSubstr("CVE")), HasSubstr("--max-connections is refused")));
}

// On a machine without information (a container without /proc and /sys) only the working functions count.
TEST_F(ChecksTest, FilesThatCannotBeReadAreNoFault) {
  machine_.files.clear();
  EXPECT_THAT(Problems(), IsEmpty());
  for (auto& [path, text] : FakeMachine().files) machine_.files[path] = "\x01 nonsense [ : \n:::";
  EXPECT_FALSE(AnyFails(CheckAll(machine_)));
}

TEST_F(ChecksTest, JsonHoldsTheSame) {
  machine_.addresses = {{"127.0.1.1"}};
  machine_.taken_ports = {0};
  const nlohmann::json json = ParseJson(ChecksJson(CheckAll(machine_)));
  EXPECT_EQ(json["ok"], false);
  EXPECT_EQ(json["checks"].size(), CheckAll(machine_).size());
  int warnings = 0;
  for (const nlohmann::json& check : json["checks"]) {
    if (check["level"] != "WARN") continue;
    ++warnings;
    EXPECT_EQ(check["section"], "network");
    EXPECT_EQ(check["name"], "host name");
    EXPECT_FALSE(check["advice"].get<std::string>().empty());
  }
  EXPECT_EQ(warnings, 1);
}

}  // namespace
}  // namespace tandem::cli
