// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BENCH_HARNESS_BENCH_CASE_H_
#define TANDEM_BENCH_HARNESS_BENCH_CASE_H_

// One measurement of a collective: an operation at one size. Bytes are counted, and bandwidths computed, as
// in nccl-tests.

#include <cstddef>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/numeric/dtype.h"

namespace tandem::bench {

enum class BenchOp { kAllReduce, kBroadcast, kAllGather, kReduceScatter, kAllToAll, kBarrier, kSendRecv };

absl::Span<const BenchOp> AllBenchOps();
absl::string_view Name(BenchOp op);  // "allreduce"
// Returns the operation of that name, or InvalidArgument.
absl::StatusOr<BenchOp> BenchOpByName(absl::string_view name);

// Return whether the operation reduces, and whether it has an in-place and an out-of-place form. Broadcast is
// always in place.
bool Reduces(BenchOp op);
bool HasInPlace(BenchOp op);
bool HasOutOfPlace(BenchOp op);

// The parameters of one measurement.
struct BenchCase {
  BenchOp op = BenchOp::kAllReduce;
  // Size of a rank's larger buffer. For all_gather, reduce_scatter and all_to_all it holds the parts of all
  // ranks.
  size_t bytes = 0;
  DType dtype = DType::kF32;
  bool in_place = false;
  int ranks = 1;

  // Number of elements in the larger buffer: `bytes` rounded down to equal parts of whole elements, but at
  // least one element per part unless `bytes` is 0.
  size_t count() const;
  // Number of elements in one rank's part of it.
  size_t part() const;
  // Number of elements of a rank's input and output. Out of place these are separate buffers.
  size_t in_count() const;
  size_t out_count() const;
  // count() in bytes: the size that is reported and divided by the time.
  size_t actual_bytes() const { return count() * SizeOf(dtype); }
};

// Returns the ratio of bus bandwidth to algorithm bandwidth: 2 (n - 1) / n for allreduce; (n - 1) / n for
// all_gather, reduce_scatter and all_to_all; else 1.
double BusFactor(BenchOp op, int ranks);

}  // namespace tandem::bench

#endif  // TANDEM_BENCH_HARNESS_BENCH_CASE_H_
