// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WEIGHTS_WIRE_MESSAGES_H_
#define TANDEM_WEIGHTS_WIRE_MESSAGES_H_

// Converts between the types of this module and the messages of tandem/v1/weights.proto. Bytes of a peer may
// have any content: what cannot be converted is InvalidArgument.

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/bytes.h"
#include "tandem/v1/weights.pb.h"
#include "weights/model/model.h"

namespace tandem::weights {

namespace v1 = ::tandem::v1;

// A version with more bytes travels in pieces of this size, if the peer's release knows them.
inline constexpr size_t kPieceBytes = size_t{1} << 20;
// A larger version travels as a whole, within the limits of the transport.
inline constexpr size_t kMaxBytesInPieces = size_t{1} << 30;
static_assert(kPieceBytes % kDigestPieceBytes == 0);

// Fills a message; without the tensors if `tensors` is false, as in answers of Head.
v1::WeightsInfo ToProto(const ModelInfo& info, bool tensors = true);
ModelInfo FromProto(const v1::WeightsInfo& message);

// Returns a model with a copy of `payload` as its values. InvalidArgument: tensors that CheckTensors refuses,
// or a payload of another size. Computes the digest if its kind is kPieces, and does not check it.
absl::StatusOr<std::shared_ptr<Model>> FromProto(const v1::WeightsInfo& message, const Bytes& payload);
// Returns the values, or the bytes [offset, offset + size) of them, as a payload that shares the model's
// memory.
Bytes PayloadOf(const std::shared_ptr<const Model>& model);
Bytes PayloadOf(const std::shared_ptr<const Model>& model, size_t offset, size_t size);
// Returns the parts of `payload`, which must outlive them.
std::vector<absl::string_view> PartsOf(const Bytes& payload);

}  // namespace tandem::weights

#endif  // TANDEM_WEIGHTS_WIRE_MESSAGES_H_
