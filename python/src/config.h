// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PYTHON_SRC_CONFIG_H_
#define TANDEM_PYTHON_SRC_CONFIG_H_

// Configurations cross the border between Python and C++ as JSON, in protobuf's mapping. Python's classes for
// optimizers, initializers, admissions and evictions are made from the C++ descriptions
// (base/kind_registry.h).

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/message.h"
#include "nanobind/nanobind.h"

namespace tandem::python {

// Fills `message` from JSON. InvalidArgument names the field or value that the message does not have.
absl::Status FromJson(absl::string_view json, google::protobuf::Message* message);
// Returns the message as JSON with the names of the .proto file; fields with default values are included.
std::string ToJson(const google::protobuf::Message& message);

// Adds describe_kinds() to the module.
void BindConfig(nanobind::module_& module);

}  // namespace tandem::python

#endif  // TANDEM_PYTHON_SRC_CONFIG_H_
