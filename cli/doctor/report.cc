// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/doctor/checks.h"
#include "cli/doctor/human_bytes.h"
#include "nlohmann/json.hpp"

namespace tandem::cli {
namespace {

const char* Name(Level level) {
  switch (level) {
    case Level::kOk:
      return "OK";
    case Level::kWarn:
      return "WARN";
    case Level::kFail:
      break;
  }
  return "FAIL";
}

}  // namespace

Checks CheckAll(const launcher::Machine& machine) {
  Checks all;
  for (const auto check :
       {CheckNetwork, CheckMemory, CheckLimits, CheckProcessor, CheckMpi, CheckGpu, CheckVersions}) {
    const Checks some = check(machine);
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

std::string ChecksText(const Checks& checks) {
  size_t width = 0;
  int count[3] = {};
  for (const Check& check : checks) width = std::max(width, check.name.size());
  std::string text, section;
  for (const Check& check : checks) {
    if (check.section != section) absl::StrAppend(&text, text.empty() ? "" : "\n", check.section, "\n");
    section = check.section;
    absl::StrAppendFormat(&text, "  %-4s  %-*s  %s\n", Name(check.level), static_cast<int>(width), check.name,
                          check.fact);
    if (!check.advice.empty()) absl::StrAppend(&text, "        -> ", check.advice, "\n");
    ++count[static_cast<int>(check.level)];
  }
  absl::StrAppendFormat(&text, "\n%d OK, %d WARN, %d FAIL\n", count[0], count[1], count[2]);
  return text;
}

std::string ChecksJson(const Checks& checks) {
  nlohmann::ordered_json json = {{"ok", !AnyFails(checks)}, {"checks", nlohmann::ordered_json::array()}};
  for (const Check& check : checks) {
    json["checks"].push_back({{"section", check.section},
                              {"name", check.name},
                              {"level", Name(check.level)},
                              {"fact", check.fact},
                              {"advice", check.advice}});
  }
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

bool AnyFails(const Checks& checks) {
  return std::any_of(checks.begin(), checks.end(), [](const Check& c) { return c.level == Level::kFail; });
}

std::string BytesText(uint64_t bytes) {
  if (bytes == launcher::Machine::kUnlimited) return "no limit";
  return HumanBytes(bytes);
}

}  // namespace tandem::cli
