// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_WORKER_MODELS_REFERENCE_H_
#define TANDEM_TESTS_WORKER_MODELS_REFERENCE_H_

// A second implementation of the models in double precision, as simple as in the papers: plain loops, no
// views.

#include <string>
#include <vector>

#include "worker/models/model.h"

namespace tandem::worker {

// A batch for the reference. The layouts are those of ModelInput, but the values are double and owned.
struct ReferenceInput {
  size_t batch = 0;
  std::vector<double> dense;
  std::vector<double> embeddings;
  std::vector<double> square_sums;  // empty: computed from the embeddings
  std::vector<double> wide;
};

// Returns the logits of the model of `options` with the flat parameter array `parameters`, whose layout is
// `blocks`.
std::vector<double> ReferenceForward(const ModelOptions& options, const std::vector<ParameterBlock>& blocks,
                                     const std::vector<double>& parameters, const ReferenceInput& input,
                                     bool training, uint64_t step);

}  // namespace tandem::worker

#endif  // TANDEM_TESTS_WORKER_MODELS_REFERENCE_H_
