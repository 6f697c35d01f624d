#ifndef TANDEM_TESTS_WORKER_MODELS_REFERENCE_H_
#define TANDEM_TESTS_WORKER_MODELS_REFERENCE_H_

// The models once more, in double and as naively as their papers write them: one example at a time, no views,
// no batches.

#include <string>
#include <vector>

#include "worker/models/model.h"

namespace tandem::worker {

// What a batch's examples look like to the reference; same layouts as ModelInput, but values are double and
// own themselves.
struct ReferenceInput {
  size_t batch = 0;
  std::vector<double> dense;
  std::vector<double> embeddings;
  std::vector<double> square_sums;  // empty: from the embeddings
  std::vector<double> wide;
};

// The logits of `options`' model with the flat parameter array `parameters`, whose layout `blocks` gives.
std::vector<double> ReferenceForward(const ModelOptions& options, const std::vector<ParameterBlock>& blocks,
                                     const std::vector<double>& parameters, const ReferenceInput& input,
                                     bool training, uint64_t step);

}  // namespace tandem::worker

#endif  // TANDEM_TESTS_WORKER_MODELS_REFERENCE_H_
