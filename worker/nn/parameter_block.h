// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_NN_PARAMETER_BLOCK_H_
#define TANDEM_WORKER_NN_PARAMETER_BLOCK_H_

// Describes the blocks of a model's flat parameter array, and the callback by which the backward pass reports
// finished gradients.

#include <cstddef>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"

namespace tandem::worker {

// A named block of the flat parameter array.
struct ParameterBlock {
  std::string name;  // for example "top.0.weight"
  std::vector<int> shape;
  size_t offset = 0;
  size_t size = 0;
  bool decay = true;  // true: weight decay applies (false for biases)
};

// Called with a range of the flat gradient array as soon as no later step of the backward pass changes it.
using GradientsReady = absl::FunctionRef<void(size_t begin, size_t end)>;

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_NN_PARAMETER_BLOCK_H_
