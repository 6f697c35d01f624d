// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_NN_GEMM_H_
#define TANDEM_WORKER_NN_GEMM_H_

// Single-precision matrix products over row-major memory, computed by OpenBLAS on the calling thread.

#include <cstddef>

namespace tandem::worker {

// Makes OpenBLAS compute on the thread that calls it. A worker process already uses all its cores: a BLAS
// thread pool would compete with its pipeline threads and with the other processes of the host. Call it once,
// early in main(), before any product.
void UseOneBlasThread();

enum class Transpose { kNo, kYes };

// Computes c[m x n] = alpha * op(a) * op(b) + beta * c, with op(a) of shape [m x k] and op(b) of shape [k x
// n]. lda, ldb and ldc are the row strides, in floats, of a, b and c in memory. c must not overlap a or b.
// With beta = 0, c is not read.
void Gemm(Transpose trans_a, Transpose trans_b, size_t m, size_t n, size_t k, float alpha, const float* a,
          size_t lda, const float* b, size_t ldb, float beta, float* c, size_t ldc);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_NN_GEMM_H_
