// SPDX-License-Identifier: Apache-2.0
#include "base/json.h"

#include "nlohmann/json.hpp"

namespace tandem {

nlohmann::json ParseJson(absl::string_view text) {
  return nlohmann::json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
}

nlohmann::ordered_json ParseOrderedJson(absl::string_view text) {
  return nlohmann::ordered_json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
}

}  // namespace tandem
