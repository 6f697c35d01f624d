// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WEIGHTS_MODEL_MODEL_H_
#define TANDEM_WEIGHTS_MODEL_MODEL_H_

// A version of a model: named float32 tensors that never change.

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "weights/model/digest.h"

namespace tandem::weights {

// Identifies a version. Versions are ordered by epoch, then by number: a publisher that starts anew has a
// larger epoch, also if the store has lost the numbers of the one before.
struct ModelVersion {
  uint64_t epoch = 0;   // 0: no version; every version is newer
  uint64_t number = 0;  // from 1
  friend auto operator<=>(const ModelVersion&, const ModelVersion&) = default;
};
// Returns "version 12 (epoch 3)".
std::string ToString(const ModelVersion& version);

// The name and shape of a tensor.
struct TensorInfo {
  std::string name;
  std::vector<int64_t> shape;  // empty: a scalar
  friend bool operator==(const TensorInfo&, const TensorInfo&) = default;
};

// A tensor to publish. The values are borrowed.
struct NamedTensor {
  std::string name;
  std::vector<int64_t> shape;
  absl::Span<const float> values;
};

// Describes a version without its values.
struct ModelInfo {
  std::string model;  // the name
  ModelVersion version;
  uint64_t step = 0;            // updates of the learner
  uint64_t items_consumed = 0;  // items that the learner has taken from its table up to this version
  bool last = false;            // the publisher has ended normally: no version will follow
  uint64_t digest = 0;          // DigestOf the tensors and values
  DigestKind digest_kind = DigestKind::kSerial;
  std::string publisher;
  std::vector<TensorInfo> tensors;
};

// A version with its values. Immutable once it is shared.
struct Model {
  ModelInfo info;
  std::shared_ptr<const float> data;  // of all tensors, one after the other; aligned to 64 bytes
  size_t count = 0;                   // of values
  // The digest of the values, of the kind of info.digest, if it was computed when they were copied from a
  // message.
  std::optional<uint64_t> computed_digest;

  absl::Span<const float> values() const { return {data.get(), count}; }
  // Returns the values of a tensor. NotFound, which lists the tensors, if there is none of this name.
  absl::StatusOr<absl::Span<const float>> Find(absl::string_view name) const;
  // Returns whether info.digest is the digest of the values. info.digest_kind must be known.
  bool HasItsDigest() const;
};

// Limits of a model, so that no peer can make a process allocate without bound.
inline constexpr size_t kMaxTensors = 65536;
inline constexpr size_t kMaxNameBytes = 256;

// Returns the number of values of a tensor of this shape. InvalidArgument: a negative dimension, or too many.
absl::StatusOr<size_t> ValuesOf(const TensorInfo& tensor);
// Returns the number of values of all tensors. InvalidArgument names what is wrong: no tensor or too many of
// them, a name that is empty, too long or given twice, or a shape that ValuesOf refuses.
absl::StatusOr<size_t> CheckTensors(absl::Span<const TensorInfo> tensors);
// Returns memory for `count` values, aligned to 64 bytes; nullptr if there is none. The process keeps the
// memory of the large model that was freed last, for the next one of its size: new pages would cost more than
// copying the values.
std::shared_ptr<float> AllocateValues(size_t count);
// Returns the error ResourceExhausted that there is no memory for `count` values.
absl::Status NoMemoryFor(size_t count);

// A model whose values are still to be copied.
struct UnfilledModel {
  std::shared_ptr<Model> model;          // with tensors and memory, without digest
  std::shared_ptr<float> values;         // model->data
  std::vector<absl::string_view> parts;  // the bytes of the tensors, one after the other; borrowed

  // Copies all values and sets the digest.
  void Fill();
};
// Returns a model with memory for the tensors' values. Errors are those of CheckTensors; InvalidArgument for
// a tensor whose number of values differs from its shape's, ResourceExhausted if there is no memory.
absl::StatusOr<UnfilledModel> PrepareModel(absl::Span<const NamedTensor> tensors);
// Returns a model with copies of the tensors' values, and its digest. Errors are those of PrepareModel.
absl::StatusOr<std::shared_ptr<Model>> MakeModel(absl::Span<const NamedTensor> tensors);

}  // namespace tandem::weights

#endif  // TANDEM_WEIGHTS_MODEL_MODEL_H_
