#ifndef TANDEM_WORKER_MODELS_INTERACTION_H_
#define TANDEM_WORKER_MODELS_INTERACTION_H_

// DLRM's feature interaction: the dot products of all pairs of an example's vectors (Naumov et al.,
// arXiv:1906.00091).

#include <vector>

#include "worker/nn/matrix.h"

namespace tandem::worker {

// The n vectors of each of `batch` examples, each of `dim` floats: `first`, if given, and then those of
// `rest`.
struct VectorSet {
  ConstMatrix first;            // [batch x dim]; data null: there is none
  const float* rest = nullptr;  // [batch x num_rest x dim]
  size_t num_rest = 0;
  size_t dim = 0;

  size_t size() const { return num_rest + (first.data != nullptr ? 1 : 0); }
};

// Gradients of a VectorSet's vectors.
struct VectorSetGradients {
  Matrix first;           // [batch x dim], added to
  float* rest = nullptr;  // [batch x num_rest x dim], overwritten
  ConstMatrix rest_add;   // [batch x (num_rest * dim)], added to what goes to `rest`; data null: nothing is
};

// Not thread-safe (it keeps scratch memory); no state passes from one call to the next.
class Interaction {
 public:
  // Forward may write this many floats behind the pairs of each row; they hold nothing of use.
  static constexpr size_t kSlack = 16;
  static constexpr size_t NumPairs(size_t n) { return n * (n - 1) / 2; }

  // out[b, pair(i, j)] = z_i . z_j for i < j, in the order (0,1), (0,2) .. (0,n-1), (1,2) ..; out has
  // NumPairs(n) columns, and kSlack writable floats behind them. Rows are written in ascending order, so what
  // lies in the slack may be the start of the next row's pairs, but nothing else of use. `out` may share rows
  // with z.first, but not overlap it.
  void Forward(const VectorSet& z, size_t batch, Matrix out);

  // dz_i = sum over j of d_out[pair(i, j)] z_j. No slack is touched.
  void Backward(const VectorSet& z, size_t batch, ConstMatrix d_out, const VectorSetGradients& dz);

 private:
  AlignedFloats scratch_;
  std::vector<const float*> z_rows_;
  std::vector<float*> dz_rows_;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_MODELS_INTERACTION_H_
