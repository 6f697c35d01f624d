// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BASE_JSON_H_
#define TANDEM_BASE_JSON_H_

// Wraps nlohmann's JSON parser so that it is compiled once: it is header-only and adds a second to every
// source that calls it. Code that uses the returned values must include nlohmann/json.hpp.

#include "absl/strings/string_view.h"
#include "nlohmann/json_fwd.hpp"

namespace tandem {

// Parses `text`. The result's is_discarded() returns true if `text` is not JSON, or if arrays and objects lie
// in each other more than 100 deep. Never throws.
nlohmann::json ParseJson(absl::string_view text);
// Like ParseJson, but keeps the members of objects in the order of the text instead of sorting them by name.
nlohmann::ordered_json ParseOrderedJson(absl::string_view text);

}  // namespace tandem

#endif  // TANDEM_BASE_JSON_H_
