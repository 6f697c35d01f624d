// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_NN_GRADIENT_CLIP_H_
#define TANDEM_WORKER_NN_GRADIENT_CLIP_H_

// Clipping of dense gradients by their norm (Pascanu, Mikolov and Bengio, ICML 2013). Thread-safe.

#include "absl/types/span.h"

namespace tandem::worker {

// Returns the Euclidean norm of `gradients`, and scales them to the norm `max_norm` if it is greater. With a
// `max_norm` of 0 the gradients stay as they are. A norm that is not finite is returned and changes nothing.
double ClipGlobalNorm(double max_norm, absl::Span<float> gradients);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_NN_GRADIENT_CLIP_H_
