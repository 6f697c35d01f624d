// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BASE_COUNTED_H_
#define TANDEM_BASE_COUNTED_H_

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace tandem {

// Returns "1 worker" or "2 workers", for messages. `noun` is singular and takes an s.
inline std::string Counted(int64_t count, absl::string_view noun) {
  return absl::StrCat(count, " ", noun, count == 1 ? "" : "s");
}

}  // namespace tandem

#endif  // TANDEM_BASE_COUNTED_H_
