// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_NN_PARAMETERS_H_
#define TANDEM_WORKER_NN_PARAMETERS_H_

// The flat array of a model's dense parameters, and that of their gradients. Layers reserve named blocks
// while the model is built, in the order of the forward pass, and later address them by offset. The model
// owns the object. Not thread-safe.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "worker/nn/matrix.h"
#include "worker/nn/parameter_block.h"

namespace tandem::worker {

class Parameters {
 public:
  explicit Parameters(uint64_t seed) : seed_(seed) {}

  // Adds a weight of shape [out x in] with values from N(0, 2 / (in + out)) (Glorot and Bengio, AISTATS 2010)
  // and returns its offset. The values are a function of (seed, name): they are the same on every rank and do
  // not depend on the order in which layers are created.
  size_t AddXavierNormal(absl::string_view name, int out, int in);
  // Adds a weight of shape [out x in] whose rows (or columns, if out > in) are orthogonal vectors of length
  // `gain`, and returns its offset (Saxe, McClelland and Ganguli, ICLR 2014). The values are a function of
  // (seed, name), too.
  size_t AddOrthogonal(absl::string_view name, int out, int in, float gain);
  // Adds a block of zeros, for biases (`decay` false) and the weights of linear terms, and returns its
  // offset.
  size_t AddZeros(absl::string_view name, std::vector<int> shape, bool decay);

  // Adds `size` running averages, each `initial`, and returns their offset among all running averages. They
  // are no parameters: they have no gradients, and the optimizer does not see them.
  size_t AddRunningAverages(absl::string_view name, int size, float initial);
  // Adds a block of ones, without decay, for the scales of batch normalization, and returns its offset.
  size_t AddOnes(absl::string_view name, int size);

  float* value(size_t offset) { return values_.data() + offset; }
  const float* value(size_t offset) const { return values_.data() + offset; }
  float* gradient(size_t offset) { return gradients_.data() + offset; }

  absl::Span<float> values() { return absl::MakeSpan(values_); }
  absl::Span<float> gradients() { return absl::MakeSpan(gradients_); }
  const std::vector<ParameterBlock>& blocks() const { return blocks_; }
  float* running_average(size_t offset) { return running_averages_.data() + offset; }
  absl::Span<float> running_averages() { return absl::MakeSpan(running_averages_); }
  const std::vector<ParameterBlock>& running_average_blocks() const { return running_average_blocks_; }

 private:
  uint64_t seed_;
  AlignedFloats values_;
  AlignedFloats gradients_;
  std::vector<ParameterBlock> blocks_;
  AlignedFloats running_averages_;
  std::vector<ParameterBlock> running_average_blocks_;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_NN_PARAMETERS_H_
