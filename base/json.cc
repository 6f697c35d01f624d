// SPDX-License-Identifier: Apache-2.0
#include "base/json.h"

#include "nlohmann/json.hpp"

namespace tandem {
namespace {

constexpr int kMaxDepth = 100;

// Returns whether arrays and objects lie in each other more than kMaxDepth deep. The library copies, compares
// and prints values recursively, so that a file of brackets would overflow the stack.
bool IsTooDeep(absl::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxDepth) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

template <typename Json>
Json Parse(absl::string_view text) {
  if (IsTooDeep(text)) return Json(Json::value_t::discarded);
  return Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
}

}  // namespace

nlohmann::json ParseJson(absl::string_view text) { return Parse<nlohmann::json>(text); }

nlohmann::ordered_json ParseOrderedJson(absl::string_view text) {
  return Parse<nlohmann::ordered_json>(text);
}

}  // namespace tandem
