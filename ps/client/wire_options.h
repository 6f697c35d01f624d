// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_CLIENT_WIRE_OPTIONS_H_
#define TANDEM_PS_CLIENT_WIRE_OPTIONS_H_

#include <cstddef>
#include <optional>

#include "absl/status/status.h"
#include "tandem/v1/parameter_server.pb.h"

namespace tandem::ps {

namespace v1 = ::tandem::v1;

// The cases in which ids are sent bit-packed (ps/wire/id_codec.h).
enum class PackIds {
  kAuto,  // for each request, if it saves enough bytes
  kAlways,
  kNever,
};

// How the pulls and pushes of one client encode one table. Each request states its formats, so clients may
// differ.
struct WireOptions {
  v1::ValueFormat pull_values = v1::VALUES_F32;
  v1::ValueFormat push_values = v1::VALUES_F32;
  PackIds pack_ids = PackIds::kAuto;
  // Error feedback: the rounding error of a push is kept here and added to the next gradient of the same id
  // (ps/client/error_feedback.h). Unset: only for int8. Pooled pushes have none, because their gradients
  // belong to bags and not to ids.
  std::optional<bool> error_feedback;
  // The largest size of the kept errors of this table.
  size_t error_feedback_bytes = size_t{256} << 20;

  bool UsesErrorFeedback() const {
    return push_values != v1::VALUES_F32 && error_feedback.value_or(push_values == v1::VALUES_INT8);
  }
};

// Returns OK, or InvalidArgument naming the field, its value and the allowed values.
absl::Status ValidateWireOptions(const WireOptions& options);

}  // namespace tandem::ps

#endif  // TANDEM_PS_CLIENT_WIRE_OPTIONS_H_
