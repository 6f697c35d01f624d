// SPDX-License-Identifier: Apache-2.0
#include "base/config_field.h"

#include <cmath>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

namespace tandem {
namespace {

// Limits of the type behind a field are not mentioned: the user cannot have meant them.
bool IsLimit(double limit) {
  const double size = std::abs(limit);
  return size < 0x1p53 && size != std::numeric_limits<int>::max() &&
         size != std::numeric_limits<uint32_t>::max();
}

std::string Interval(const Range& range) {
  return absl::StrCat(range.above_min ? "(" : "[", FormatLimit(range.min), ", ", FormatLimit(range.max),
                      range.below_max ? ")" : "]");
}

// The range as it follows "it must be".
std::string Requirement(const FieldInfo& info, bool integer, bool list) {
  const Range& range = info.range;
  std::string text = list ? "a list of whole numbers " : "";
  const absl::string_view finite = integer ? "" : "finite and ";
  if (IsLimit(range.min) && IsLimit(range.max)) {
    absl::StrAppend(&text, "in ", Interval(range));
  } else if (IsLimit(range.min)) {
    absl::StrAppend(&text, finite, range.above_min ? "> " : ">= ", FormatLimit(range.min));
  } else if (IsLimit(range.max)) {
    absl::StrAppend(&text, finite, range.below_max ? "< " : "<= ", FormatLimit(range.max));
  } else {
    absl::StrAppend(&text, integer ? "a whole number" : "finite");
  }
  if (info.usual) absl::StrAppend(&text, " (", FormatLimit(*info.default_value), " is usual)");
  absl::StrAppend(&text, info.allowed);
  return text;
}

// The fewest digits, from 6 on, with which `parse` gives back the same value.
template <typename T, typename Parse>
std::string Shortest(T value, int most, const Parse& parse) {
  for (int digits = 6; digits < most; ++digits) {
    std::string text = absl::StrFormat("%.*g", digits, value);
    if (parse(text.c_str(), nullptr) == value) return text;
  }
  return absl::StrFormat("%.*g", most, value);
}

}  // namespace

bool Range::Holds(double value) const {
  return std::isfinite(value) && (above_min ? value > min : value >= min) &&
         (below_max ? value < max : value <= max);
}

std::string Range::ToString() const {
  if (IsLimit(min) && IsLimit(max)) return absl::StrCat("in ", Interval(*this));
  if (IsLimit(min)) return absl::StrCat(above_min ? "greater than " : "of at least ", FormatLimit(min));
  if (IsLimit(max)) return absl::StrCat(below_max ? "less than " : "of at most ", FormatLimit(max));
  return "";
}

std::string FormatLimit(double limit) {
  int exponent;
  if (limit >= 0x1p20 && std::frexp(limit, &exponent) == 0.5) return absl::StrCat("2^", exponent - 1);
  if (std::abs(limit) < 0x1p53 && limit == std::trunc(limit)) {
    return absl::StrCat(static_cast<int64_t>(limit));  // never 1.67772e+07
  }
  return absl::StrReplaceAll(FormatValue(limit), {{"e-0", "e-"}});  // 1e-8 instead of 1e-08
}

std::string FormatValue(float value) { return Shortest(value, 9, std::strtof); }
std::string FormatValue(double value) { return Shortest(value, 17, std::strtod); }

std::string FormatValue(const FieldValue& value) {
  return std::visit(
      [](const auto& v) -> std::string {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, std::vector<int>>) {
          return absl::StrCat("[", absl::StrJoin(v, ", "), "]");
        } else if constexpr (std::is_floating_point_v<T>) {
          return FormatValue(v);
        } else {
          return absl::StrCat(v);
        }
      },
      value);
}

absl::Status ValidateField(absl::string_view group, const FieldInfo& info, const FieldValue& value) {
  const auto check = [&](auto number, bool list) {
    if (info.range.Holds(static_cast<double>(number))) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(group, ".", info.error_name.empty() ? info.name : info.error_name, " is ",
                     FormatValue(FieldValue(number)), "; it must be ",
                     Requirement(info, std::is_integral_v<decltype(number)>, list)));
  };
  return std::visit(
      [&](const auto& v) {
        if constexpr (std::is_same_v<std::decay_t<decltype(v)>, std::vector<int>>) {
          absl::Status status;
          for (const int element : v) status.Update(check(element, true));
          return status;
        } else if constexpr (std::is_same_v<std::decay_t<decltype(v)>, std::string>) {
          for (const absl::string_view choice : info.choices) {
            if (v == choice) return absl::OkStatus();
          }
          return absl::InvalidArgumentError(
              absl::StrCat(group, ".", info.error_name.empty() ? info.name : info.error_name, " is '", v,
                           "'; it must be one of ", absl::StrJoin(info.choices, ", ")));
        } else {
          return check(v, false);
        }
      },
      value);
}

namespace internal {

FieldValue SameType(const FieldValue& like, double number) {
  return std::visit(
      [&](const auto& v) -> FieldValue {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, std::vector<int>> || std::is_same_v<T, std::string>) {
          return v;
        } else {
          return static_cast<T>(number);
        }
      },
      like);
}

}  // namespace internal
}  // namespace tandem
