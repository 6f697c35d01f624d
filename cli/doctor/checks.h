// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLI_DOCTOR_CHECKS_H_
#define TANDEM_CLI_DOCTOR_CHECKS_H_

// The checks of `tandem doctor`: one function for each section of its report.

#include <string>
#include <vector>

#include "launcher/host/machine.h"

namespace tandem::cli {

enum class Level { kOk, kWarn, kFail };

// The result of one check.
struct Check {
  Level level = Level::kOk;
  std::string section;  // "network"
  std::string name;     // "host name"
  std::string fact;     // the finding
  std::string advice;   // what the user should do; "": nothing
};
using Checks = std::vector<Check>;

Checks CheckNetwork(const launcher::Machine& machine);
Checks CheckMemory(const launcher::Machine& machine);
Checks CheckLimits(const launcher::Machine& machine);
Checks CheckProcessor(const launcher::Machine& machine);
Checks CheckMpi(const launcher::Machine& machine);
Checks CheckGpu(const launcher::Machine& machine);
Checks CheckVersions(const launcher::Machine& machine);
// Runs all of them, in this order.
Checks CheckAll(const launcher::Machine& machine);

// Returns the report as text, with a summary at the end.
std::string ChecksText(const Checks& checks);
// Returns the report as JSON: {"ok": ..., "checks": [{"section", "name", "level", "fact", "advice"}]}.
std::string ChecksJson(const Checks& checks);
// Returns whether any check has the level kFail.
bool AnyFails(const Checks& checks);

// Returns "12.5 GiB", for example, and "no limit" for Machine::kUnlimited.
std::string BytesText(uint64_t bytes);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_DOCTOR_CHECKS_H_
