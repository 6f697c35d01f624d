// SPDX-License-Identifier: Apache-2.0
#include "weights/model/model.h"

#include <algorithm>
#include <limits>
#include <new>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "base/round_up.h"
#include "base/status.h"

namespace tandem::weights {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kMaxValues = std::numeric_limits<size_t>::max() / sizeof(float) / 2;
// Memory of at least this size is kept for another model. It is allocated in multiples of kUnit.
constexpr size_t kLarge = size_t{1} << 20, kUnit = size_t{64} << 10;

// The memory of the large model that was freed last.
class SpareMemory {
 public:
  // Returns `bytes`, a multiple of kUnit, or nullptr.
  char* Take(size_t bytes) {
    {
      absl::MutexLock lock(&mutex_);
      if (bytes_ == bytes) {
        bytes_ = 0;
        return std::exchange(memory_, nullptr);
      }
    }
    return static_cast<char*>(::operator new (bytes, std::align_val_t{kAlignment}, std::nothrow));
  }
  void Put(char* memory, size_t bytes) {
    {
      absl::MutexLock lock(&mutex_);
      std::swap(memory_, memory);
      bytes_ = bytes;
    }
    if (memory != nullptr) ::operator delete (memory, std::align_val_t{kAlignment});
  }

 private:
  absl::Mutex mutex_;
  char* memory_ ABSL_GUARDED_BY(mutex_) = nullptr;
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // 0: none
};

SpareMemory& Spare() {
  static SpareMemory& spare = *new SpareMemory;  // models may be freed while the process ends
  return spare;
}

}  // namespace

absl::Status NoMemoryFor(size_t count) {
  return absl::ResourceExhaustedError(
      absl::StrCat("there is no memory for a model of ", count * sizeof(float), " bytes"));
}

std::string ToString(const ModelVersion& version) {
  return absl::StrCat("version ", version.number, " (epoch ", version.epoch, ")");
}

absl::StatusOr<absl::Span<const float>> Model::Find(absl::string_view name) const {
  size_t begin = 0;
  for (const TensorInfo& tensor : info.tensors) {
    TANDEM_ASSIGN_OR_RETURN(const size_t size, ValuesOf(tensor));
    if (tensor.name == name) return values().subspan(begin, size);
    begin += size;
  }
  return absl::NotFoundError(absl::StrCat(
      "model '", info.model, "' has no tensor '", name, "'; it has ",
      absl::StrJoin(info.tensors, ", ",
                    [](std::string* out, const TensorInfo& tensor) { out->append(tensor.name); })));
}

bool Model::HasItsDigest() const {
  return info.digest ==
         (computed_digest ? *computed_digest : DigestOf(info.digest_kind, info.tensors, values()));
}

absl::StatusOr<size_t> ValuesOf(const TensorInfo& tensor) {
  size_t count = 1;
  for (const int64_t dimension : tensor.shape) {
    if (dimension < 0 || (dimension > 0 && count > kMaxValues / static_cast<size_t>(dimension))) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor '", tensor.name, "' has the shape [", absl::StrJoin(tensor.shape, ", "),
                       "]; dimensions must be at least 0, and all values fit into memory"));
    }
    count *= static_cast<size_t>(dimension);
  }
  return count;
}

absl::StatusOr<size_t> CheckTensors(absl::Span<const TensorInfo> tensors) {
  if (tensors.empty() || tensors.size() > kMaxTensors) {
    return absl::InvalidArgumentError(
        absl::StrCat("a model has ", tensors.size(), " tensors; it must have 1 to ", kMaxTensors));
  }
  absl::flat_hash_set<absl::string_view> names;
  size_t count = 0;
  for (const TensorInfo& tensor : tensors) {
    if (tensor.name.empty() || tensor.name.size() > kMaxNameBytes) {
      return absl::InvalidArgumentError(absl::StrCat("the name of a tensor has ", tensor.name.size(),
                                                     " bytes; it must have 1 to ", kMaxNameBytes));
    }
    if (!names.insert(tensor.name).second)
      return absl::InvalidArgumentError(absl::StrCat("tensor '", tensor.name, "' is given twice"));
    TANDEM_ASSIGN_OR_RETURN(const size_t size, ValuesOf(tensor));
    if (size > kMaxValues - count) {
      return absl::InvalidArgumentError(
          absl::StrCat("the model has more values than fit into memory, up to tensor '", tensor.name, "'"));
    }
    count += size;
  }
  return count;
}

std::shared_ptr<float> AllocateValues(size_t count) {
  if (count > kMaxValues) return nullptr;
  const size_t bytes = std::max<size_t>(1, count) * sizeof(float);
  if (bytes < kLarge) {
    void* const memory = ::operator new (bytes, std::align_val_t{kAlignment}, std::nothrow);
    if (memory == nullptr) return nullptr;
    return {static_cast<float*>(memory),
            [](float* p) { ::operator delete (p, std::align_val_t{kAlignment}); }};
  }
  const size_t capacity = RoundUp(bytes, kUnit);
  char* const memory = Spare().Take(capacity);
  if (memory == nullptr) return nullptr;
  return {reinterpret_cast<float*>(memory),
          [capacity](float* p) { Spare().Put(reinterpret_cast<char*>(p), capacity); }};
}

void UnfilledModel::Fill() {
  model->info.digest_kind = DigestKind::kPieces;
  model->info.digest = CopyWithDigest(model->info.tensors, parts, values.get());
}

absl::StatusOr<UnfilledModel> PrepareModel(absl::Span<const NamedTensor> tensors) {
  UnfilledModel unfilled{.model = std::make_shared<Model>()};
  Model& model = *unfilled.model;
  model.info.tensors.reserve(tensors.size());
  for (const NamedTensor& tensor : tensors) model.info.tensors.push_back({tensor.name, tensor.shape});
  TANDEM_ASSIGN_OR_RETURN(model.count, CheckTensors(model.info.tensors));
  unfilled.parts.reserve(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    TANDEM_ASSIGN_OR_RETURN(const size_t size, ValuesOf(model.info.tensors[i]));
    if (tensors[i].values.size() != size) {
      return absl::InvalidArgumentError(absl::StrCat("tensor '", tensors[i].name, "' has ",
                                                     tensors[i].values.size(), " values, and its shape [",
                                                     absl::StrJoin(tensors[i].shape, ", "), "] has ", size));
    }
    unfilled.parts.emplace_back(reinterpret_cast<const char*>(tensors[i].values.data()),
                                size * sizeof(float));
  }
  unfilled.values = AllocateValues(model.count);
  if (unfilled.values == nullptr) return NoMemoryFor(model.count);
  model.data = unfilled.values;
  return unfilled;
}

absl::StatusOr<std::shared_ptr<Model>> MakeModel(absl::Span<const NamedTensor> tensors) {
  TANDEM_ASSIGN_OR_RETURN(UnfilledModel unfilled, PrepareModel(tensors));
  unfilled.Fill();
  return std::move(unfilled.model);
}

}  // namespace tandem::weights
