// SPDX-License-Identifier: Apache-2.0
#include "weights/model/model.h"

#include <algorithm>
#include <limits>
#include <new>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/random.h"
#include "base/status.h"

namespace tandem::weights {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kMaxValues = std::numeric_limits<size_t>::max() / sizeof(float) / 2;

}  // namespace

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

uint64_t DigestOf(absl::Span<const TensorInfo> tensors, absl::Span<const float> values) {
  uint64_t layout = 0;
  for (const TensorInfo& tensor : tensors) {
    layout = HashBytes(tensor.name, layout);
    for (const int64_t dimension : tensor.shape) layout = Mix64(layout, static_cast<uint64_t>(dimension));
    layout = Mix64(layout, tensor.shape.size());
  }
  return HashBytes({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)}, layout);
}

std::shared_ptr<float> AllocateValues(size_t count) {
  return {static_cast<float*>(
              ::operator new (std::max<size_t>(1, count) * sizeof(float), std::align_val_t{kAlignment})),
          [](float* memory) { ::operator delete (memory, std::align_val_t{kAlignment}); }};
}

absl::StatusOr<std::shared_ptr<Model>> MakeModel(absl::Span<const NamedTensor> tensors) {
  auto model = std::make_shared<Model>();
  model->info.tensors.reserve(tensors.size());
  for (const NamedTensor& tensor : tensors) model->info.tensors.push_back({tensor.name, tensor.shape});
  TANDEM_ASSIGN_OR_RETURN(model->count, CheckTensors(model->info.tensors));
  const std::shared_ptr<float> data = AllocateValues(model->count);
  float* to = data.get();
  for (size_t i = 0; i < tensors.size(); ++i) {
    TANDEM_ASSIGN_OR_RETURN(const size_t size, ValuesOf(model->info.tensors[i]));
    if (tensors[i].values.size() != size) {
      return absl::InvalidArgumentError(absl::StrCat("tensor '", tensors[i].name, "' has ",
                                                     tensors[i].values.size(), " values, and its shape [",
                                                     absl::StrJoin(tensors[i].shape, ", "), "] has ", size));
    }
    to = std::copy(tensors[i].values.begin(), tensors[i].values.end(), to);
  }
  model->data = data;
  model->info.digest = DigestOf(model->info.tensors, model->values());
  return model;
}

}  // namespace tandem::weights
