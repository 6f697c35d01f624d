// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_NN_ACTIVATION_H_
#define TANDEM_WORKER_NN_ACTIVATION_H_

// Vectorised operations around the matrix products: biases, ReLU, tanh, dropout and sums over a batch. They
// use the vector instructions of the CPU found at run time. All matrices are row-major [rows x cols] with a
// row stride. Threads may call these functions concurrently on disjoint memory.

#include <cstddef>
#include <cstdint>

#include "worker/nn/matrix.h"

namespace tandem::worker {

// Selects the units of a layer that a training step keeps, as a function of (key, position) alone, with
// position = row * cols + col. A step thus repeats exactly, in whatever order and vector width it is
// computed.
struct Dropout {
  uint32_t key[2] = {0, 0};
  uint32_t threshold = 0;  // a unit is kept when its hash is at least this; 0 keeps all
  float scale = 1.0f;      // kept units are multiplied by 1 / (1 - rate)
};
// Returns dropout at `rate` in [0, 1) for layer `layer` in step `step`.
Dropout MakeDropout(float rate, uint64_t seed, uint64_t step, uint64_t layer);
// Returns whether the unit at `position` is kept.
bool Keeps(const Dropout& dropout, uint32_t position);

// y += bias.
void AddBias(const float* bias, size_t rows, Matrix y);
// y = max(y + bias, 0), then dropout.
void BiasRelu(const float* bias, const Dropout& dropout, size_t rows, Matrix y);
// Backward pass of BiasRelu: dx = y > 0 ? dy * scale : 0, and bias_gradient[cols] = column sums of dx. `dx`
// may be `dy`. A dropped unit is 0 in y, so no mask is needed.
void BiasReluBackward(ConstMatrix y, ConstMatrix dy, float scale, size_t rows, Matrix dx,
                      float* bias_gradient);
// y = tanh(y + bias).
void BiasTanh(const float* bias, size_t rows, Matrix y);
// Backward pass of BiasTanh: dx = dy * (1 - y^2), and bias_gradient[cols] = column sums of dx. `dx` may be
// `dy`.
void BiasTanhBackward(ConstMatrix y, ConstMatrix dy, size_t rows, Matrix dx, float* bias_gradient);
// sums[cols] = sum over rows.
void ColumnSums(ConstMatrix x, size_t rows, float* sums);
// sums[r] += sum over columns of row r.
void AddRowSums(ConstMatrix x, size_t rows, float* sums);
// x[r, c] = values[r].
void FillRows(const float* values, size_t rows, Matrix x);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_NN_ACTIVATION_H_
