// SPDX-License-Identifier: Apache-2.0
#include "worker/data/number.h"

#include <charconv>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/utf8.h"

namespace tandem::worker {
namespace {

bool IsMissing(absl::string_view text) {
  for (absl::string_view name : {"", "NA", "null", "NULL", "None", "\\N", "?"}) {
    if (text == name) return true;
  }
  return false;
}

NumberKind ParseDouble(absl::string_view text, double* value) {
  // Most fields are small integers: a sign and up to 15 digits, which a double holds exactly.
  size_t at = 0;
  const bool negative = !text.empty() && text[0] == '-';
  if (negative) at = 1;
  if (text.size() > at && text.size() <= at + 15) {
    uint64_t digits = 0;
    while (at < text.size() && absl::ascii_isdigit(text[at])) digits = digits * 10 + (text[at++] - '0');
    if (at == text.size()) {
      *value = negative ? -static_cast<double>(digits) : static_cast<double>(digits);
      return NumberKind::kNumber;
    }
  }
  text = absl::StripAsciiWhitespace(text);
  if (IsMissing(text)) return NumberKind::kMissing;
  if (text == "NaN" || text == "nan") return NumberKind::kNaN;
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);
  double parsed = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), parsed);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(parsed))
    return NumberKind::kBad;
  *value = parsed;
  return NumberKind::kNumber;
}

}  // namespace

NumberKind ParseNumber(absl::string_view text, float* value) {
  double parsed = 0;
  const NumberKind kind = ParseDouble(text, &parsed);
  if (kind != NumberKind::kNumber) return kind;
  // Rounded first: 3.4028235e+38, as FLT_MAX is usually written, is a little more than FLT_MAX.
  const float rounded = static_cast<float>(parsed);
  if (!std::isfinite(rounded)) return NumberKind::kBad;
  *value = rounded;
  return kind;
}

bool ParseLabel(const Schema& schema, absl::string_view text, float* label, std::string* reason) {
  double value = 0;
  const NumberKind kind = ParseDouble(text, &value);
  if (kind == NumberKind::kMissing && schema.label_is_optional) {
    *label = std::numeric_limits<float>::quiet_NaN();
    return true;
  }
  if (kind != NumberKind::kNumber) {
    *reason = absl::StrCat("the label ", Quoted(text), " is not a number");
    return false;
  }
  if (schema.has_threshold) {
    *label = value >= schema.threshold ? 1.0f : 0.0f;
    return true;
  }
  if (value != 0 && value != 1 && value != -1) {
    *reason = absl::StrCat("the label is ", Printable(text.substr(0, 40)),
                           "; without a threshold it must be 0 or 1 (or -1 for 0)");
    return false;
  }
  *label = value == 1 ? 1.0f : 0.0f;
  return true;
}

}  // namespace tandem::worker
