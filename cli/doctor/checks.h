#ifndef TANDEM_CLI_DOCTOR_CHECKS_H_
#define TANDEM_CLI_DOCTOR_CHECKS_H_

// The checks of `tandem doctor`, one function and file for each section of its report.

#include <string>
#include <vector>

#include "launcher/host/machine.h"

namespace tandem::cli {

enum class Level { kOk, kWarn, kFail };

struct Check {
  Level level = Level::kOk;
  std::string section;  // "network"
  std::string name;     // "host name"
  std::string fact;     // what was found
  std::string advice;   // what to do; empty when nothing is to be done
};
using Checks = std::vector<Check>;

Checks CheckNetwork(const launcher::Machine& machine);
Checks CheckMemory(const launcher::Machine& machine);
Checks CheckLimits(const launcher::Machine& machine);
Checks CheckProcessor(const launcher::Machine& machine);
Checks CheckMpi(const launcher::Machine& machine);
Checks CheckGpu(const launcher::Machine& machine);
Checks CheckVersions(const launcher::Machine& machine);
// All of them, in this order.
Checks CheckAll(const launcher::Machine& machine);

// Lines for people, with a summary at the end.
std::string ChecksText(const Checks& checks);
// {"ok": ..., "checks": [{"section", "name", "level", "fact", "advice"}]}
std::string ChecksJson(const Checks& checks);
bool AnyFails(const Checks& checks);

// "12.5 GiB"; "no limit" for Machine::kUnlimited.
std::string BytesText(uint64_t bytes);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_DOCTOR_CHECKS_H_
