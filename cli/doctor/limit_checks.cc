// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/str_cat.h"
#include "cli/doctor/checks.h"

namespace tandem::cli {
namespace {

constexpr char kLimits[] = "limits";

std::string Number(uint64_t value) {
  return value == launcher::Machine::kUnlimited ? "no limit" : absl::StrCat(value);
}

}  // namespace

Checks CheckLimits(const launcher::Machine& machine) {
  Checks checks;
  const launcher::Machine::Limit files = machine.GetLimit(launcher::Machine::Resource::kOpenFiles);
  const std::string raise =
      files.hard > files.soft
          ? absl::StrCat("ulimit -n ",
                         Number(files.hard == launcher::Machine::kUnlimited ? 65536 : files.hard))
          : "LimitNOFILE= of the service, --ulimit nofile= of the container, or "
            "/etc/security/limits.conf";
  checks.push_back(
      {files.soft < 256    ? Level::kFail
       : files.soft < 1024 ? Level::kWarn
                           : Level::kOk,
       kLimits, "open files", absl::StrCat(Number(files.soft), " (at most ", Number(files.hard), ")"),
       files.soft < 1024 ? absl::StrCat("each rank keeps connections to all others: ", raise) : ""});

  const launcher::Machine::Limit processes = machine.GetLimit(launcher::Machine::Resource::kProcesses);
  const bool few = processes.soft < 1024;
  checks.push_back(
      {few ? Level::kWarn : Level::kOk, kLimits, "processes", Number(processes.soft),
       few ? "threads count as well, some 20 for each rank: ulimit -u, or pids-limit of the container" : ""});

  const launcher::Machine::Limit locked = machine.GetLimit(launcher::Machine::Resource::kLockedMemory);
  const bool rdma = machine.ReadFile("/sys/class/infiniband_verbs/abi_version").ok();
  const bool low = rdma && locked.soft != launcher::Machine::kUnlimited;
  checks.push_back(
      {low ? Level::kWarn : Level::kOk, kLimits, "locked memory", BytesText(locked.soft),
       low ? "InfiniBand is there, and MPI and NCCL register buffers with it: ulimit -l unlimited" : ""});

  const launcher::Machine::Limit core = machine.GetLimit(launcher::Machine::Resource::kCore);
  checks.push_back({Level::kOk, kLimits, "core dumps",
                    core.soft == 0 ? "none is written (ulimit -c unlimited, to look into a crash)"
                                   : absl::StrCat("up to ", BytesText(core.soft))});
  return checks;
}

}  // namespace tandem::cli
