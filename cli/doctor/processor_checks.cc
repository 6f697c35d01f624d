// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/cgroup.h"
#include "cli/doctor/checks.h"

namespace tandem::cli {
namespace {

constexpr char kProcessor[] = "processor";

std::string Model(const launcher::Machine& machine) {
  const absl::StatusOr<std::string> text = machine.ReadFile("/proc/cpuinfo");
  if (!text.ok()) return "";
  for (const absl::string_view line : absl::StrSplit(*text, '\n')) {
    if (absl::StartsWith(line, "model name")) return std::string(line.substr(line.find(':') + 2));
  }
  return "";
}

}  // namespace

Checks CheckProcessor(const launcher::Machine& machine) {
  Checks checks;
  if (const std::string model = Model(machine); !model.empty()) {
    checks.push_back({Level::kOk, kProcessor, "model", model});
  }
  const int usable = machine.UsableCores();
  std::string fact = absl::StrCat(usable, " usable of ", machine.OnlineCores());
  const std::optional<double> quota =
      CgroupCoreQuota([&machine](const std::string& path) { return machine.ReadFile(path); });
  if (quota.has_value()) absl::StrAppend(&fact, absl::StrFormat(", quota %.2g", *quota));
  const bool throttled = quota.has_value() && *quota < usable;
  checks.push_back({throttled ? Level::kWarn : Level::kOk, kProcessor, "cores", fact,
                    throttled
                        ? absl::StrFormat("the quota stops all threads when it is used up, ranks that wait "
                                          "for each other suffer most: start at most %d rank(s), or give "
                                          "whole cores (--cpuset-cpus) instead of a quota",
                                          std::max(1, static_cast<int>(*quota)))
                        : ""});

  const std::vector<std::string> simd = machine.SimdTargets();
  bool wide = false;
  for (const std::string& target : simd) {
    wide = wide || absl::StartsWith(target, "AVX") || absl::StartsWith(target, "NEON") ||
           absl::StartsWith(target, "SVE");
  }
  checks.push_back(
      {wide ? Level::kOk : Level::kWarn, kProcessor, "SIMD",
       simd.empty() ? "none" : absl::StrCat(simd[0], " (has ", absl::StrJoin(simd, " "), ")"),
       wide ? "" : "no AVX2: a virtual machine may hide it (QEMU: -cpu host); sums take twice as long"});

  const absl::StatusOr<std::string> governor =
      machine.ReadFile("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
  if (!governor.ok()) {
    checks.push_back({Level::kOk, kProcessor, "governor", "not known: not readable here (virtual machine?)"});
  } else {
    const bool slow = *governor == "powersave" || *governor == "conservative";
    checks.push_back({slow ? Level::kWarn : Level::kOk, kProcessor, "governor", *governor,
                      slow ? "for steady timings: cpupower frequency-set -g performance" : ""});
  }

  const absl::StatusOr<std::string> clock =
      machine.ReadFile("/sys/devices/system/clocksource/clocksource0/current_clocksource");
  if (clock.ok()) {
    const bool slow =
        *clock == "hpet" || *clock == "acpi_pm" || *clock == "jiffies" || *clock == "refined-jiffies";
    checks.push_back(
        {slow ? Level::kWarn : Level::kOk, kProcessor, "clock source", *clock,
         slow ? "each look at the clock costs a system call: see dmesg for why the kernel does not "
                "trust the TSC"
              : ""});
  }
  return checks;
}

}  // namespace tandem::cli
