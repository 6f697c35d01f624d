// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BASE_KIND_REGISTRY_H_
#define TANDEM_BASE_KIND_REGISTRY_H_

// A registry of the kinds of a pluggable part, such as the optimizers "sgd" and "adam". Each kind is
// described once, in its own source file, by a ConfigKind; one list of them makes a KindRegistry. Factories,
// validation, the job file's parser and writer, and the tables of docs/jobs.md are derived from it.

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/config_field.h"
#include "base/status.h"
#include "base/suggest.h"

namespace tandem {

// Fields that contradict each other, although each is in its range.
struct FieldConflict {
  absl::string_view field;  // FieldInfo::name of the field to blame in a job file; a string literal
  std::string job_message;  // follows "field '<name>' ..." in errors of a job file
  std::string message;      // follows "<group>." in errors of KindRegistry::Validate
};

// The description of a kind. `Config` is a struct with a member `kind`, or a protobuf message with such a
// field. `Build` says how to make the product of a checked configuration; in most registries it is a pointer
// to a function.
template <typename Config, typename Build>
struct ConfigKind {
  absl::string_view name;
  absl::string_view summary;                // Markdown for docs/jobs.md
  absl::string_view reference;              // the paper or system that it comes from; may be empty
  std::vector<ConfigField<Config>> fields;  // in the order in which job files are written
  // Returns what contradicts in `config`, if anything. Null: nothing can. May be called on fields out of
  // range.
  std::optional<FieldConflict> (*check)(const Config& config) = nullptr;
  Build build{};

  // Returns the field whose FieldInfo::name is `field`, or null.
  const ConfigField<Config>* FindField(absl::string_view field) const {
    for (const ConfigField<Config>& f : fields) {
      if (f.info.name == field) return &f;
    }
    return nullptr;
  }
};

// Immutable and thread-safe.
template <typename ConfigType, typename Build>
class KindRegistry {
 public:
  using Config = ConfigType;
  using Kind = ConfigKind<Config, Build>;

  // `group` begins error messages: "optimizer". It must outlive the registry.
  KindRegistry(absl::string_view group, std::vector<Kind> kinds) : group_(group), kinds_(std::move(kinds)) {
    for (const Kind& kind : kinds_) names_.push_back(kind.name);
  }
  KindRegistry(const KindRegistry&) = delete;  // names() refers to the registry

  absl::string_view group() const { return group_; }
  absl::Span<const Kind> kinds() const { return kinds_; }
  absl::Span<const absl::string_view> names() const { return names_; }

  // Returns the kind, or null if there is none of that name.
  const Kind* Find(absl::string_view name) const {
    for (const Kind& kind : kinds_) {
      if (kind.name == name) return &kind;
    }
    return nullptr;
  }

  // Returns the kind, or InvalidArgument with a suggestion and the names of all kinds.
  absl::StatusOr<const Kind*> Get(absl::string_view name) const {
    if (const Kind* kind = Find(name); kind != nullptr) return kind;
    return absl::InvalidArgumentError(
        absl::StrCat(group_, ".kind is '", name, "', which is unknown", DidYouMean(name, names_)));
  }

  // Changes `config` to the kind `name`, which must exist, and sets the kind's fields to their default
  // values. Other fields of a message are cleared; those of a struct, and fields without a default value,
  // stay as they are.
  void Choose(absl::string_view name, Config* config) const {
    const Kind* kind = Find(name);
    TANDEM_CHECK_MSG(kind != nullptr, name);
    if constexpr (requires { config->set_kind(std::string()); }) {
      config->Clear();
      config->set_kind(std::string(name));
    } else {
      config->kind = std::string(name);
    }
    for (const ConfigField<Config>& field : kind->fields) SetDefault(field, config);
  }

  // Returns a configuration of the kind `name`, which must exist, with default values.
  Config Default(absl::string_view name) const {
    Config config;
    Choose(name, &config);
    return config;
  }

  // OK, or InvalidArgument for contradicting fields and for a field of the kind that is out of its range.
  // Fields that only other kinds have are ignored.
  absl::Status Validate(const Kind& kind, const Config& config) const {
    if (kind.check != nullptr) {
      if (const std::optional<FieldConflict> conflict = kind.check(config)) {
        return absl::InvalidArgumentError(absl::StrCat(group_, ".", conflict->message));
      }
    }
    for (const ConfigField<Config>& field : kind.fields) {
      TANDEM_RETURN_IF_ERROR(ValidateField(group_, field.info, field.get(config)));
    }
    return absl::OkStatus();
  }

  // Like Validate, and checks the fields that only other kinds have against the range of the first such kind.
  absl::Status ValidateAllFields(const Kind& kind, const Config& config) const {
    TANDEM_RETURN_IF_ERROR(Validate(kind, config));
    for (const ConfigField<Config>& field : AllFields()) {
      if (kind.FindField(field.info.name) != nullptr) continue;
      TANDEM_RETURN_IF_ERROR(ValidateField(group_, field.info, field.get(config)));
    }
    return absl::OkStatus();
  }

  // Returns the fields of all kinds, one of each name, in the order of the kinds.
  std::vector<ConfigField<Config>> AllFields() const {
    std::vector<ConfigField<Config>> all;
    for (const Kind& kind : kinds_) {
      for (const ConfigField<Config>& field : kind.fields) {
        bool known = false;
        for (const ConfigField<Config>& f : all) known = known || f.info.name == field.info.name;
        if (!known) all.push_back(field);
      }
    }
    return all;
  }

 private:
  const absl::string_view group_;
  const std::vector<Kind> kinds_;
  std::vector<absl::string_view> names_;
};

}  // namespace tandem

#endif  // TANDEM_BASE_KIND_REGISTRY_H_
