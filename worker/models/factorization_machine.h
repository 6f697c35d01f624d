// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_MODELS_FACTORIZATION_MACHINE_H_
#define TANDEM_WORKER_MODELS_FACTORIZATION_MACHINE_H_

// Computes the second-order term of a factorization machine, the sum of all pairs' dot products, in linear
// time: 0.5 * (|sum of v|^2 - sum of |v|^2), where v are the weighted rows of an example (Rendle, ICDM 2010).

#include "absl/types/span.h"
#include "worker/models/model.h"
#include "worker/nn/matrix.h"

namespace tandem::worker {

// Keeps the sums of the last Forward for Backward. Not thread-safe. num_sparse > 0.
class FactorizationMachine {
 public:
  FactorizationMachine(size_t num_sparse, size_t dim) : num_sparse_(num_sparse), dim_(dim) {}

  // Adds the second-order term to logits[b]. The squares come from input.square_sums or, if that is null,
  // from input.embeddings, which gives the same result when each feature has at most one id.
  void Forward(const ModelInput& input, absl::Span<float> logits);
  // Overwrites d_input.embeddings and, if input.square_sums is given, d_input.square_sums.
  void Backward(const ModelInput& input, absl::Span<const float> d_logits,
                const InputGradients& d_input) const;

 private:
  size_t num_sparse_;
  size_t dim_;
  AlignedFloats sums_;  // [B x dim]
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_MODELS_FACTORIZATION_MACHINE_H_
