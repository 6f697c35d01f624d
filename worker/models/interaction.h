// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_MODELS_INTERACTION_H_
#define TANDEM_WORKER_MODELS_INTERACTION_H_

// Computes DLRM's feature interaction: the dot products of all pairs of an example's vectors (Naumov et al.,
// arXiv:1906.00091).

#include <vector>

#include "worker/nn/matrix.h"

namespace tandem::worker {

// The n vectors of each example, `dim` floats each: `first`, if there is one, and then those of `rest`.
struct VectorSet {
  ConstMatrix first;            // [batch x dim]; data is null if there is none
  const float* rest = nullptr;  // [batch x num_rest x dim]
  size_t num_rest = 0;
  size_t dim = 0;

  size_t size() const { return num_rest + (first.data != nullptr ? 1 : 0); }
};

// Gradients of a VectorSet's vectors.
struct VectorSetGradients {
  Matrix first;           // [batch x dim], added to
  float* rest = nullptr;  // [batch x num_rest x dim], overwritten
  // [batch x (num_rest * dim)]; added to the gradients written to `rest` unless data is null.
  ConstMatrix rest_add;
};

// Forward and backward pass of the interaction. Keeps only scratch memory: no state passes from one call to
// the next. Not thread-safe.
class Interaction {
 public:
  // Forward may overwrite this many floats after the pairs of each row with unspecified values.
  static constexpr size_t kSlack = 16;
  static constexpr size_t NumPairs(size_t n) { return n * (n - 1) / 2; }

  // Computes out[b, pair(i, j)] = z_i . z_j for i < j, in the order (0,1), (0,2) .. (0,n-1), (1,2) ... out
  // has NumPairs(n) columns, followed by kSlack writable floats. Rows are written in ascending order, so the
  // slack may be the start of the next row's pairs, but must not hold other values. `out` and z.first may be
  // different columns of the same rows; otherwise they must not overlap.
  void Forward(const VectorSet& z, size_t batch, Matrix out);

  // Computes dz_i = sum over j of d_out[pair(i, j)] z_j. Does not touch the slack.
  void Backward(const VectorSet& z, size_t batch, ConstMatrix d_out, const VectorSetGradients& dz);

 private:
  AlignedFloats scratch_;
  std::vector<const float*> z_rows_;
  std::vector<float*> dz_rows_;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_MODELS_INTERACTION_H_
