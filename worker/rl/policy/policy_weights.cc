// SPDX-License-Identifier: Apache-2.0
#include "worker/rl/policy/policy_weights.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tandem::rl {

std::vector<weights::NamedTensor> TensorsOf(Policy& policy) {
  worker::Parameters& parameters = policy.parameters();
  std::vector<weights::NamedTensor> tensors;
  const auto add = [&](const std::vector<worker::ParameterBlock>& blocks, absl::Span<const float> values) {
    for (const worker::ParameterBlock& block : blocks) {
      tensors.push_back({.name = block.name,
                         .shape = {block.shape.begin(), block.shape.end()},
                         .values = values.subspan(block.offset, block.size)});
    }
  };
  add(parameters.blocks(), parameters.values());
  add(parameters.running_average_blocks(), parameters.running_averages());
  return tensors;
}

absl::Status LoadWeights(const weights::Model& model, Policy* policy) {
  const std::vector<weights::NamedTensor> tensors = TensorsOf(*policy);
  bool same = tensors.size() == model.info.tensors.size();
  for (size_t i = 0; same && i < tensors.size(); ++i) {
    same = tensors[i].name == model.info.tensors[i].name && tensors[i].shape == model.info.tensors[i].shape;
  }
  if (!same) {
    const auto append = [](std::string* out, const auto& tensor) {
      absl::StrAppend(out, tensor.name, "[", absl::StrJoin(tensor.shape, ","), "]");
    };
    return absl::FailedPreconditionError(
        absl::StrCat("model '", model.info.model, "' has the tensors ",
                     absl::StrJoin(model.info.tensors, " ", append), ", and this job's policy has ",
                     absl::StrJoin(tensors, " ", append), "; learners and actors must run the same job"));
  }
  worker::Parameters& parameters = policy->parameters();
  const absl::Span<const float> values = model.values();
  const auto middle = values.begin() + static_cast<ptrdiff_t>(parameters.values().size());
  std::copy(values.begin(), middle, parameters.values().begin());
  std::copy(middle, values.end(), parameters.running_averages().begin());
  return absl::OkStatus();
}

}  // namespace tandem::rl
