#ifndef TANDEM_PS_CLIENT_WIRE_OPTIONS_H_
#define TANDEM_PS_CLIENT_WIRE_OPTIONS_H_

#include <cstddef>
#include <optional>

#include "absl/status/status.h"
#include "tandem/v1/parameter_server.pb.h"

namespace tandem::ps {

namespace v1 = ::tandem::v1;

// Whether ids travel bit-packed (ps/wire/id_codec.h).
enum class PackIds {
  kAuto,  // request by request, where it pays
  kAlways,
  kNever,
};

// How one client's pulls and pushes of one table travel. Servers serve whatever a request asks for, so that
// clients may differ.
struct WireOptions {
  v1::ValueFormat pull_values = v1::VALUES_F32;
  v1::ValueFormat push_values = v1::VALUES_F32;
  PackIds pack_ids = PackIds::kAuto;
  // What a lossy push loses of a gradient is kept here and added to the next gradient of the same id
  // (ps/client/ error_feedback.h). Unset: for int8 only. Pooled pushes have none: their gradients are of
  // bags, not of ids.
  std::optional<bool> error_feedback;
  size_t error_feedback_bytes = size_t{256} << 20;  // of what is kept, for this table

  bool UsesErrorFeedback() const {
    return push_values != v1::VALUES_F32 && error_feedback.value_or(push_values == v1::VALUES_INT8);
  }
};

// InvalidArgument, naming the field, its value and what is allowed.
absl::Status ValidateWireOptions(const WireOptions& options);

}  // namespace tandem::ps

#endif  // TANDEM_PS_CLIENT_WIRE_OPTIONS_H_
