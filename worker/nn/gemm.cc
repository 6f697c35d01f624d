// SPDX-License-Identifier: Apache-2.0
#include "worker/nn/gemm.h"

#include <cblas.h>

namespace tandem::worker {

void UseOneBlasThread() { openblas_set_num_threads(1); }

void Gemm(Transpose trans_a, Transpose trans_b, size_t m, size_t n, size_t k, float alpha, const float* a,
          size_t lda, const float* b, size_t ldb, float beta, float* c, size_t ldc) {
  if (m == 0 || n == 0) return;
  if (k == 0) {  // BLAS refuses the leading dimensions of an empty factor.
    for (size_t row = 0; row < m; ++row) {
      for (size_t col = 0; col < n; ++col)
        c[row * ldc + col] = beta == 0.0f ? 0.0f : beta * c[row * ldc + col];
    }
    return;
  }
  cblas_sgemm(CblasRowMajor, trans_a == Transpose::kYes ? CblasTrans : CblasNoTrans,
              trans_b == Transpose::kYes ? CblasTrans : CblasNoTrans, static_cast<blasint>(m),
              static_cast<blasint>(n), static_cast<blasint>(k), alpha, a, static_cast<blasint>(lda), b,
              static_cast<blasint>(ldb), beta, c, static_cast<blasint>(ldc));
}

}  // namespace tandem::worker
