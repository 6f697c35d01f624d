#ifndef TANDEM_WORKER_NN_LOSS_H_
#define TANDEM_WORKER_NN_LOSS_H_

// Binary cross-entropy from logits, stable for logits of any size. Pure functions, callable from any thread.

#include "absl/types/span.h"

namespace tandem::worker {

// The mean over the batch of -(y log p + (1 - y) log(1 - p)), p = sigmoid(z), added up in double; 0 for an
// empty batch. Writes d_logits[b] = (p - y) * scale, unless `d_logits` is empty: scale = 1 / batch gives the
// gradient of the mean. All spans have one size, labels lie in [0, 1]. NaN in a logit gives NaN.
double BinaryCrossEntropy(absl::Span<const float> logits, absl::Span<const float> labels, float scale,
                          absl::Span<float> d_logits);

// probabilities[b] = sigmoid(logits[b]); they may be the same memory.
void Sigmoid(absl::Span<const float> logits, absl::Span<float> probabilities);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_NN_LOSS_H_
