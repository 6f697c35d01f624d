// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLI_DOCTOR_HUMAN_BYTES_H_
#define TANDEM_CLI_DOCTOR_HUMAN_BYTES_H_

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tandem::cli {

// Returns a size for people: "700 B", "1.5 KiB".
inline std::string HumanBytes(uint64_t bytes) {
  if (bytes < 1024) return absl::StrCat(bytes, " B");
  double value = static_cast<double>(bytes);
  const char* unit = "B";
  for (const char* next : {"KiB", "MiB", "GiB", "TiB"}) {
    if (value < 1024) break;
    value /= 1024;
    unit = next;
  }
  return absl::StrFormat("%.1f %s", value, unit);
}

}  // namespace tandem::cli

#endif  // TANDEM_CLI_DOCTOR_HUMAN_BYTES_H_
