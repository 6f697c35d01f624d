// SPDX-License-Identifier: Apache-2.0
#include "weights/wire/messages.h"

#include <bit>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tandem::weights {

static_assert(std::endian::native == std::endian::little, "payloads are little-endian");

v1::WeightsInfo ToProto(const ModelInfo& info, bool tensors) {
  v1::WeightsInfo message;
  message.set_model(info.model);
  message.set_epoch(info.version.epoch);
  message.set_version(info.version.number);
  message.set_step(info.step);
  message.set_items_consumed(info.items_consumed);
  message.set_last(info.last);
  message.set_digest(info.digest);
  message.set_digest_kind(static_cast<uint32_t>(info.digest_kind));
  message.set_publisher(info.publisher);
  if (!tensors) return message;
  for (const TensorInfo& tensor : info.tensors) {
    v1::WeightsTensor& one = *message.add_tensors();
    one.set_name(tensor.name);
    one.mutable_shape()->Add(tensor.shape.begin(), tensor.shape.end());
  }
  return message;
}

ModelInfo FromProto(const v1::WeightsInfo& message) {
  ModelInfo info;
  info.model = message.model();
  info.version = {.epoch = message.epoch(), .number = message.version()};
  info.step = message.step();
  info.items_consumed = message.items_consumed();
  info.last = message.last();
  info.digest = message.digest();
  info.digest_kind = static_cast<DigestKind>(message.digest_kind());
  info.publisher = message.publisher();
  info.tensors.reserve(static_cast<size_t>(message.tensors_size()));
  for (const v1::WeightsTensor& tensor : message.tensors())
    info.tensors.push_back({tensor.name(), {tensor.shape().begin(), tensor.shape().end()}});
  return info;
}

absl::StatusOr<std::shared_ptr<Model>> FromProto(const v1::WeightsInfo& message, const Bytes& payload) {
  auto model = std::make_shared<Model>();
  model->info = FromProto(message);
  TANDEM_ASSIGN_OR_RETURN(model->count, CheckTensors(model->info.tensors));
  if (payload.size() != model->count * sizeof(float)) {
    return absl::InvalidArgumentError(absl::StrCat("model '", model->info.model, "': the payload has ",
                                                   payload.size(), " bytes, and the tensors have ",
                                                   model->count * sizeof(float)));
  }
  const std::shared_ptr<float> data = AllocateValues(model->count);
  if (data == nullptr) return NoMemoryFor(model->count);
  if (model->info.digest_kind == DigestKind::kPieces) {
    model->computed_digest = CopyWithDigest(model->info.tensors, PartsOf(payload), data.get());
  } else {
    BytesReader(payload).Copy(data.get(), payload.size());
  }
  model->data = data;
  return model;
}

std::vector<absl::string_view> PartsOf(const Bytes& payload) {
  std::vector<absl::string_view> parts;
  parts.reserve(payload.slices().size());
  for (const Slice& slice : payload.slices()) parts.push_back(slice.view());
  return parts;
}

Bytes PayloadOf(const std::shared_ptr<const Model>& model) {
  return PayloadOf(model, 0, model->count * sizeof(float));
}

Bytes PayloadOf(const std::shared_ptr<const Model>& model, size_t offset, size_t size) {
  return Bytes(Slice(model, reinterpret_cast<const char*>(model->data.get()) + offset, size));
}

}  // namespace tandem::weights
