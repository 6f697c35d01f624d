// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_NN_LOSS_H_
#define TANDEM_WORKER_NN_LOSS_H_

// Binary cross-entropy of logits, numerically stable for logits of any size. The functions are thread-safe.

#include "absl/types/span.h"

namespace tandem::worker {

// Returns the mean of -(y log p + (1 - y) log(1 - p)) over the batch, where p = sigmoid(z), z is the logit
// and y the label, in [0, 1]. The sum is computed in double. The result is 0 for an empty batch, and NaN if a
// logit is NaN.
//
// Writes d_logits[b] = (p - y) * scale, unless `d_logits` is empty; scale = 1 / batch gives the gradient of
// the mean. All spans have the same size.
double BinaryCrossEntropy(absl::Span<const float> logits, absl::Span<const float> labels, float scale,
                          absl::Span<float> d_logits);

// Writes probabilities[b] = sigmoid(logits[b]). Both spans have the same size and may be the same memory.
void Sigmoid(absl::Span<const float> logits, absl::Span<float> probabilities);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_NN_LOSS_H_
