#ifndef TANDEM_WORKER_NN_GEMM_H_
#define TANDEM_WORKER_NN_GEMM_H_

// Single-precision matrix products over row-major memory, done by OpenBLAS on the calling thread.

#include <cstddef>

namespace tandem::worker {

// Makes OpenBLAS compute on the thread that calls it. A worker process owns its cores already: its pipeline
// threads and its neighbours would fight with a BLAS thread pool. Call once, early in main(), before any
// product.
void UseOneBlasThread();

enum class Transpose { kNo, kYes };

// c[m x n] = alpha * op(a) * op(b) + beta * c, with op(a) of shape [m x k] and op(b) of shape [k x n]. lda,
// ldb and ldc are the row strides of a, b and c as they lie in memory. c may not overlap a or b. With beta =
// 0, c is not read.
void Gemm(Transpose trans_a, Transpose trans_b, size_t m, size_t n, size_t k, float alpha, const float* a,
          size_t lda, const float* b, size_t ldb, float beta, float* c, size_t ldc);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_NN_GEMM_H_
