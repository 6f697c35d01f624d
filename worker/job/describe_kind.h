// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_JOB_DESCRIBE_KIND_H_
#define TANDEM_WORKER_JOB_DESCRIBE_KIND_H_

// Declares fields of a job file (fields.h) from the descriptions of kinds (base/kind_registry.h). Private to
// the schemas of job files.

#include <algorithm>
#include <optional>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/config_field.h"
#include "base/kind_registry.h"
#include "worker/job/fields.h"

namespace tandem::worker {

// Returns whether `name` may be the name of a job: letters, digits, '_', '-' and '.', with another first
// character than '.'.
inline bool IsJobName(absl::string_view name) {
  return !name.empty() && name[0] != '.' && std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '.';
  });
}

namespace internal {

// Returns the position of `name`, or 0 if it is not among `names`.
inline int IndexOf(const std::vector<std::string>& names, absl::string_view name) {
  const auto found = std::find(names.begin(), names.end(), name);
  return found == names.end() ? 0 : static_cast<int>(found - names.begin());
}

}  // namespace internal

// Declares a field that its description defines.
template <typename Config>
bool DescribeField(Fields& f, const ConfigField<Config>& field, Config& config) {
  const char* const name = field.info.name.data();
  const char* const help = field.info.help.data();
  const Range& range = field.info.range;
  FieldValue value = field.get(config);
  const bool given = std::visit(
      [&](auto& v) {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, std::vector<int>>) {
          return f.Wholes(name, &v, range, help);
        } else if constexpr (std::is_same_v<T, std::string>) {
          const std::vector<std::string> choices(field.info.choices.begin(), field.info.choices.end());
          int index = internal::IndexOf(choices, v);
          const bool chosen = f.OneOf(name, &index, choices, help);
          v = choices[index];
          return chosen;
        } else if constexpr (std::is_floating_point_v<T>) {
          return f.Real(name, &v, range, help);
        } else {
          return f.Integer(name, &v, range, help);
        }
      },
      value);
  field.set(config, value);
  if (!given && f.reading() && !field.info.missing.empty()) {
    f.Wrong(name, absl::StrCat("is missing: ", field.info.missing));
  }
  return given;
}

// Returns the name of a configuration's kind; messages have a function and structs a member.
template <typename Config>
absl::string_view KindOf(const Config& config) {
  if constexpr (requires { config.kind(); }) {
    return config.kind();
  } else {
    return config.kind;
  }
}

// Declares the field `kind` of a group whose other fields depend on it. An empty kind stands for the first
// one. Returns whether the file gives it.
template <typename Registry>
bool DescribeKind(Fields& f, const Registry& registry, const char* help, typename Registry::Config& config) {
  const std::vector<std::string> names(registry.names().begin(), registry.names().end());
  for (const auto& kind : registry.kinds()) {
    const typename Registry::Config defaults = registry.Default(kind.name);
    KindDoc doc{.name = kind.name, .summary = kind.summary, .reference = kind.reference};
    for (const auto& field : kind.fields) doc.fields.push_back({field.info, field.get(defaults)});
    f.Kind(doc);
  }
  int index = internal::IndexOf(names, KindOf(config));
  const bool given = f.OneOf("kind", &index, names, help);
  if (given) registry.Choose(names[index], &config);
  return given;
}

// Declares the fields of the kind that `config` has.
template <typename Registry>
void DescribeKindFields(Fields& f, const Registry& registry, typename Registry::Config& config) {
  const auto* kind = registry.Find(KindOf(config));
  if (kind == nullptr) kind = &registry.kinds()[0];
  f.Note(absl::StrCat("of kind '", kind->name, "'"));
  for (const auto& field : kind->fields) DescribeField(f, field, config);
  if (!f.reading() || kind->check == nullptr) return;
  if (const std::optional<FieldConflict> conflict = kind->check(config)) {
    f.Wrong(conflict->field.data(), conflict->job_message);
  }
}

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_JOB_DESCRIBE_KIND_H_
