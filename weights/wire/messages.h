// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WEIGHTS_WIRE_MESSAGES_H_
#define TANDEM_WEIGHTS_WIRE_MESSAGES_H_

// Converts between the types of this module and the messages of tandem/v1/weights.proto. Bytes of a peer may
// have any content: what cannot be converted is InvalidArgument.

#include <memory>

#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "tandem/v1/weights.pb.h"
#include "weights/model/model.h"

namespace tandem::weights {

namespace v1 = ::tandem::v1;

// Fills a message; without the tensors if `tensors` is false, as in answers of Head.
v1::WeightsInfo ToProto(const ModelInfo& info, bool tensors = true);
ModelInfo FromProto(const v1::WeightsInfo& message);

// Returns a model with a copy of `payload` as its values. InvalidArgument: tensors that CheckTensors refuses,
// or a payload of another size. Does not check the digest.
absl::StatusOr<std::shared_ptr<Model>> FromProto(const v1::WeightsInfo& message, const Bytes& payload);
// Returns the values as a payload that shares the model's memory.
Bytes PayloadOf(const std::shared_ptr<const Model>& model);

}  // namespace tandem::weights

#endif  // TANDEM_WEIGHTS_WIRE_MESSAGES_H_
