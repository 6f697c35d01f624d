// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BASE_CONFIG_FIELD_H_
#define TANDEM_BASE_CONFIG_FIELD_H_

// Describes one field of a configuration: its name, range, default value and help text, and how to get and
// set it. Validation, the job file's parser and writer, and the tables of docs/jobs.md are derived from these
// descriptions. All functions are thread-safe.

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tandem {

// The values that a number may have.
struct Range {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool above_min = false;  // true: `min` itself is not allowed
  bool below_max = false;  // true: `max` itself is not allowed

  // Returns whether `value` is in the range. NaN is in no range; an infinity is in none either.
  bool Holds(double value) const;
  // Returns the range as it follows "a number": "greater than 0", "in [0, 1)", or "" if it has no limits.
  std::string ToString() const;
};

inline Range AtLeast(double min) { return {.min = min}; }                          // [min, inf)
inline Range Above(double min) { return {.min = min, .above_min = true}; }         // (min, inf)
inline Range AtMost(double max) { return {.max = max}; }                           // (-inf, max]
inline Range Between(double min, double max) { return {.min = min, .max = max}; }  // [min, max]
inline Range Fraction() { return {.min = 0, .max = 1, .below_max = true}; }        // [0, 1)

// Returns a limit of a range as text: 65536, 0.5, and 2^20 for powers of two from there on.
std::string FormatLimit(double limit);

// A list of integers holds an element for each of them, such as the widths of layers. A text is one of the
// field's choices.
using FieldValue = std::variant<float, double, int, uint32_t, uint64_t, std::vector<int>, std::string>;

// Returns the value in the fewest digits that read back as the same value: "0.001", "[64, 32]".
std::string FormatValue(float value);
std::string FormatValue(double value);
std::string FormatValue(const FieldValue& value);

// The description of a field. Texts are string literals: they outlive it, and are followed by a NUL, because
// parsers pass names and help texts on as C strings.
struct FieldInfo {
  absl::string_view name;        // in a job file
  absl::string_view error_name;  // in errors of ValidateField, if it is not `name`
  absl::string_view help;        // Markdown for docs/jobs.md
  Range range;
  // The default value. Fields without one keep the value of a default-constructed configuration.
  std::optional<double> default_value;
  bool usual = false;                      // true: errors mention the default value, as in "(0.9 is usual)"
  absl::string_view allowed;               // continues the range in errors: "updates", "(0: no clipping)"
  std::vector<absl::string_view> choices;  // of a text: the values that it may have; string literals
  absl::string_view missing;  // if not empty, a job file must give the field; completes "is missing: ..."
};

// OK, or InvalidArgument "<group>.<name> is <value>; it must be <range>" if the value, or an element of a
// list, is not in the field's range, or a text is none of its choices.
absl::Status ValidateField(absl::string_view group, const FieldInfo& info, const FieldValue& value);

// A field of the struct or protobuf message `Config`.
template <typename Config>
struct ConfigField {
  FieldInfo info;
  FieldValue (*get)(const Config& config);
  void (*set)(Config& config, const FieldValue& value);  // `value` has the type that `get` returns
};

namespace internal {

template <auto Getter, auto Setter>
struct MessageAccess;
template <typename C, typename T, T (C::*Getter)() const, void (C::*Setter)(T)>
struct MessageAccess<Getter, Setter> {
  using Config = C;
  static FieldValue Get(const C& config) { return (config.*Getter)(); }
  static void Set(C& config, const FieldValue& value) { (config.*Setter)(std::get<T>(value)); }
};

template <auto Member>
struct MemberAccess;
template <typename C, typename T, T C::*Member>
struct MemberAccess<Member> {
  using Config = C;
  static FieldValue Get(const C& config) { return config.*Member; }
  static void Set(C& config, const FieldValue& value) { config.*Member = std::get<T>(value); }
};

// Returns `like`'s type with the number `number`. Lists and texts are returned as they are.
FieldValue SameType(const FieldValue& like, double number);

}  // namespace internal

// Describes a field of a protobuf message: MessageField<&Config::beta1, &Config::set_beta1>({.name =
// "beta1"}).
template <auto Getter, auto Setter>
auto MessageField(const FieldInfo& info) {
  using Access = internal::MessageAccess<Getter, Setter>;
  return ConfigField<typename Access::Config>{info, Access::Get, Access::Set};
}

// Describes a data member of a struct: MemberField<&Options::dropout>({.name = "dropout"}).
template <auto Member>
auto MemberField(const FieldInfo& info) {
  using Access = internal::MemberAccess<Member>;
  return ConfigField<typename Access::Config>{info, Access::Get, Access::Set};
}

// Sets the field to its default value. No effect on fields without one.
template <typename Config>
void SetDefault(const ConfigField<Config>& field, Config* config) {
  if (!field.info.default_value) return;
  field.set(*config, internal::SameType(field.get(*config), *field.info.default_value));
}

}  // namespace tandem

#endif  // TANDEM_BASE_CONFIG_FIELD_H_
