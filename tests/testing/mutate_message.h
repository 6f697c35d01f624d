// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_TESTING_MUTATE_MESSAGE_H_
#define TANDEM_TESTS_TESTING_MUTATE_MESSAGE_H_

// Messages as a hostile writer makes them: well-formed, with one field that says something impossible.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"

namespace tandem::testing {

// `root` as it is during the call, and what is wrong with it: "config.dim = 4294967295".
using MutationVisitor =
    absl::FunctionRef<void(const google::protobuf::Message& root, const std::string& what)>;

namespace mutations {

template <typename T>
std::vector<T> Extremes() {
  using Limits = std::numeric_limits<T>;
  std::vector<T> values = {T{0}, T{1}, Limits::lowest(), Limits::max(), static_cast<T>(Limits::max() / 2)};
  if (!Limits::is_integer) values.insert(values.end(), {Limits::quiet_NaN(), Limits::infinity()});
  if (Limits::is_integer) values.insert(values.end(), {static_cast<T>(1 << 20), static_cast<T>(1 << 30)});
  return values;
}

inline void MutateBelow(google::protobuf::Message* root, google::protobuf::Message* at,
                        const std::string& path, MutationVisitor visit) {
  using google::protobuf::FieldDescriptor;
  const google::protobuf::Descriptor& type = *at->GetDescriptor();
  const google::protobuf::Reflection& reflection = *at->GetReflection();
  for (int f = 0; f < type.field_count(); ++f) {
    const FieldDescriptor* const field = type.field(f);
    const std::string name = path + field->name();
    const int size = field->is_repeated() ? reflection.FieldSize(*at, field) : 1;
    if (field->is_repeated() && size > 0) {
      const std::unique_ptr<google::protobuf::Message> before(at->New());
      before->CopyFrom(*at);
      reflection.RemoveLast(at, field);
      visit(*root, absl::StrCat("the last of ", name, " is missing"));
      reflection.ClearField(at, field);
      visit(*root, absl::StrCat(name, " is empty"));
      at->CopyFrom(*before);
      at->MergeFrom(*before);
      visit(*root, absl::StrCat("all that is repeated beside ", name, " is there twice"));
      at->CopyFrom(*before);
    }
    for (int i = 0; i < size; i += std::max(1, size - 1)) {  // the first and the last
      const std::string one = field->is_repeated() ? absl::StrCat(name, "[", i, "]") : name;
      const auto scalars = [&](auto values, auto get, auto set) {
        const auto was = get();
        for (const auto& value : values) {
          if (value == was) continue;
          set(value);
          visit(*root, absl::StrCat(one, " = another value"));
        }
        set(was);
      };
#define TANDEM_MUTATE(TYPE, NAME)                                                 \
  scalars(                                                                        \
      Extremes<TYPE>(),                                                           \
      [&] {                                                                       \
        return field->is_repeated() ? reflection.GetRepeated##NAME(*at, field, i) \
                                    : reflection.Get##NAME(*at, field);           \
      },                                                                          \
      [&](TYPE value) {                                                           \
        field->is_repeated() ? reflection.SetRepeated##NAME(at, field, i, value)  \
                             : reflection.Set##NAME(at, field, value);            \
      })
      switch (field->cpp_type()) {
        case FieldDescriptor::CPPTYPE_INT32:
          TANDEM_MUTATE(int32_t, Int32);
          break;
        case FieldDescriptor::CPPTYPE_INT64:
          TANDEM_MUTATE(int64_t, Int64);
          break;
        case FieldDescriptor::CPPTYPE_UINT32:
          TANDEM_MUTATE(uint32_t, UInt32);
          break;
        case FieldDescriptor::CPPTYPE_UINT64:
          TANDEM_MUTATE(uint64_t, UInt64);
          break;
        case FieldDescriptor::CPPTYPE_FLOAT:
          TANDEM_MUTATE(float, Float);
          break;
        case FieldDescriptor::CPPTYPE_DOUBLE:
          TANDEM_MUTATE(double, Double);
          break;
        case FieldDescriptor::CPPTYPE_BOOL:
          if (field->is_repeated()) break;
          reflection.SetBool(at, field, !reflection.GetBool(*at, field));
          visit(*root, absl::StrCat(one, " is inverted"));
          reflection.SetBool(at, field, !reflection.GetBool(*at, field));
          break;
        case FieldDescriptor::CPPTYPE_ENUM: {
          if (field->is_repeated()) break;
          const int was = reflection.GetEnumValue(*at, field);
          for (const int value : {0, 1, 2, 3, 77, -1}) {
            reflection.SetEnumValue(at, field, value);
            visit(*root, absl::StrCat(one, " = ", value));
          }
          reflection.SetEnumValue(at, field, was);
          break;
        }
        case FieldDescriptor::CPPTYPE_STRING: {
          if (field->is_repeated()) break;
          const std::string was = reflection.GetString(*at, field);
          for (const std::string& value : {std::string(), was.substr(0, was.size() / 2), was + was, was + "x",
                                           std::string("../x"), std::string(3, '\x01')}) {
            reflection.SetString(at, field, value);
            visit(*root, absl::StrCat(one, " has ", value.size(), " other bytes"));
          }
          reflection.SetString(at, field, was);
          break;
        }
        case FieldDescriptor::CPPTYPE_MESSAGE:
          if (field->is_repeated()) {
            MutateBelow(root, reflection.MutableRepeatedMessage(at, field, i), absl::StrCat(one, "."), visit);
          } else if (reflection.HasField(*at, field)) {
            MutateBelow(root, reflection.MutableMessage(at, field), absl::StrCat(one, "."), visit);
          }
          break;
      }
#undef TANDEM_MUTATE
    }
  }
}

}  // namespace mutations

// Calls `visit` for each copy of `message` in which one field, of any depth, has an extreme value, is longer
// or shorter, or an element of a repeated field is missing or there twice. Of a repeated field only the first
// and the last elements are changed.
inline void ForEachMutation(const google::protobuf::Message& message, MutationVisitor visit) {
  const std::unique_ptr<google::protobuf::Message> copy(message.New());
  copy->CopyFrom(message);
  mutations::MutateBelow(copy.get(), copy.get(), "", visit);
}

}  // namespace tandem::testing

#endif  // TANDEM_TESTS_TESTING_MUTATE_MESSAGE_H_
