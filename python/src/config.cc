// SPDX-License-Identifier: Apache-2.0
#include "python/src/config.h"

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <variant>

#include "absl/strings/str_cat.h"
#include "google/protobuf/util/json_util.h"
#include "nanobind/stl/string.h"
#include "nanobind/stl/vector.h"
#include "ps/optimizers/registry.h"
#include "ps/policies/initializer.h"
#include "ps/policies/registry.h"
#include "python/src/errors.h"
#include "python/src/process.h"

namespace nb = nanobind;

namespace tandem::python {
namespace {

nb::object ToPython(const FieldValue& value) {
  return std::visit([](const auto& v) -> nb::object { return nb::cast(v); }, value);
}

// Returns what a configuration of `kind` has in `field`, unless the caller sets it.
template <typename Config>
nb::object DefaultOf(const ConfigField<Config>& field) {
  Config config;
  SetDefault(field, &config);
  return ToPython(field.get(config));
}

template <typename Config>
nb::dict Describe(const ConfigField<Config>& field, absl::string_view message_name) {
  nb::dict described;
  described["name"] = std::string(field.info.name);
  described["message_name"] = std::string(message_name);
  described["help"] = std::string(field.info.help);
  described["range"] = field.info.range.ToString();
  described["required"] = !field.info.missing.empty() || !field.info.default_value.has_value();
  described["default"] = DefaultOf(field);
  return described;
}

// Returns the name of the message's field that `field` sets: fields of a job file have names of their own.
template <typename Config>
std::string MessageName(const ConfigField<Config>& field) {
  Config config;
  // Any value that differs from the default of the message.
  const FieldValue value = field.get(config);
  field.set(config, std::visit(
                        [](const auto& v) -> FieldValue {
                          using T = std::decay_t<decltype(v)>;
                          if constexpr (std::is_arithmetic_v<T>) return static_cast<T>(1);
                          return v;
                        },
                        value));
  std::vector<const google::protobuf::FieldDescriptor*> set;
  config.GetReflection()->ListFields(config, &set);
  return set.size() == 1 ? set.front()->name() : std::string(field.info.name);
}

template <typename Registry>
nb::list DescribeRegistry(const Registry& registry,
                          const std::vector<ConfigField<typename Registry::Config>>& common) {
  nb::list kinds;
  for (const auto& kind : registry.kinds()) {
    nb::dict described;
    described["name"] = std::string(kind.name);
    described["summary"] = std::string(kind.summary);
    described["reference"] = std::string(kind.reference);
    nb::list fields;
    for (const auto& field : kind.fields) fields.append(Describe(field, MessageName(field)));
    for (const auto& field : common) {
      if (kind.FindField(field.info.name) == nullptr) fields.append(Describe(field, MessageName(field)));
    }
    described["fields"] = fields;
    kinds.append(described);
  }
  return kinds;
}

nb::list DescribeKinds(const std::string& group) {
  if (group == "optimizer") {
    std::vector<ps::OptimizerField> common = ps::ModifierFields();
    common.insert(common.begin(), ps::L2());
    return DescribeRegistry(ps::Optimizers(), common);
  }
  if (group == "initializer") return DescribeRegistry(ps::Initializers(), {});
  if (group == "admission") return DescribeRegistry(ps::Admissions(), {});
  if (group == "eviction") return DescribeRegistry(ps::Evictions(), {});
  Raise(absl::InvalidArgumentError(absl::StrCat(
      "there is no group '", group, "'; the groups are optimizer, initializer, admission, eviction")));
}

}  // namespace

absl::Status FromJson(absl::string_view json, google::protobuf::Message* message) {
  const auto status = google::protobuf::util::JsonStringToMessage({json.data(), json.size()}, message);
  if (status.ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the ", message->GetDescriptor()->name(),
                                                 " is malformed: ", std::string(status.message())));
}

std::string ToJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(message, &json, options);
  return status.ok() ? json : "{}";
}

namespace {

// Writes the initial values of the rows [0, count) of the table that the JSON text describes, [count x dim].
void FillInitialRows(const std::string& config_json, uint64_t count, uint64_t address) {
  ::tandem::v1::TableConfig config;
  RaiseIfError(FromJson(config_json, &config));
  const std::unique_ptr<ps::Initializer> initializer =
      ValueOrRaise(ps::MakeInitializer(config.initializer()));
  GilReleased release;
  auto* const rows = reinterpret_cast<float*>(address);
  for (uint64_t id = 0; id < count; ++id)
    initializer->Fill(config.seed(), id, rows + id * config.dim(), config.dim());
}

}  // namespace

void BindConfig(nb::module_& module) {
  module.def("fill_initial_rows", &FillInitialRows);
  module.def("describe_kinds", &DescribeKinds, nb::arg("group"),
             "Returns the kinds of a group ('optimizer', 'initializer', 'admission' or 'eviction') with "
             "their fields.");
}

}  // namespace tandem::python
