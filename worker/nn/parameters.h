#ifndef TANDEM_WORKER_NN_PARAMETERS_H_
#define TANDEM_WORKER_NN_PARAMETERS_H_

// The flat array of a model's dense parameters and that of their gradients. Layers reserve named blocks while
// the model is built, in the order of the forward pass, and find them by offset afterwards. Owned by the
// model; not thread-safe.

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

  // A weight of shape [out x in] from N(0, 2 / (in + out)) (Glorot and Bengio, AISTATS 2010); returns its
  // offset. The values are a function of (seed, name), hence the same on every rank and in whatever order
  // layers are made.
  size_t AddXavierNormal(absl::string_view name, int out, int in);
  // Zeros: biases (`decay` false) and the weights of plain linear terms.
  size_t AddZeros(absl::string_view name, std::vector<int> shape, bool decay);

  float* value(size_t offset) { return values_.data() + offset; }
  const float* value(size_t offset) const { return values_.data() + offset; }
  float* gradient(size_t offset) { return gradients_.data() + offset; }

  absl::Span<float> values() { return absl::MakeSpan(values_); }
  absl::Span<float> gradients() { return absl::MakeSpan(gradients_); }
  const std::vector<ParameterBlock>& blocks() const { return blocks_; }

 private:
  uint64_t seed_;
  AlignedFloats values_;
  AlignedFloats gradients_;
  std::vector<ParameterBlock> blocks_;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_NN_PARAMETERS_H_
