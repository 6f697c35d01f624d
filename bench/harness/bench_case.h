#ifndef TANDEM_BENCH_HARNESS_BENCH_CASE_H_
#define TANDEM_BENCH_HARNESS_BENCH_CASE_H_

// What is measured: one operation at one size. Bytes are counted, and bandwidths computed, as nccl-tests
// does.

#include <cstddef>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/numeric/dtype.h"

namespace tandem::bench {

enum class BenchOp { kAllReduce, kBroadcast, kAllGather, kReduceScatter, kAllToAll, kBarrier, kSendRecv };

absl::Span<const BenchOp> AllBenchOps();
absl::string_view Name(BenchOp op);  // "allreduce"
absl::StatusOr<BenchOp> BenchOpByName(absl::string_view name);

// How the reducing ones reduce, and whether an operation has a form in place and one out of place. Broadcast
// is always in place.
bool Reduces(BenchOp op);
bool HasInPlace(BenchOp op);
bool HasOutOfPlace(BenchOp op);

// One measurement. A plain value.
struct BenchCase {
  BenchOp op = BenchOp::kAllReduce;
  // Of a rank's larger buffer: all ranks' parts together for all_gather, reduce_scatter and all_to_all.
  size_t bytes = 0;
  DType dtype = DType::kF32;
  bool in_place = false;
  int ranks = 1;

  // Elements in the larger buffer: `bytes` rounded down to equal parts of whole elements, but not to nothing.
  size_t count() const;
  // Elements in one rank's part of it.
  size_t part() const;
  // Elements that a rank gives and gets, in buffers of their own when out of place.
  size_t in_count() const;
  size_t out_count() const;
  // count() in bytes: what is reported, and divided by time.
  size_t actual_bytes() const { return count() * SizeOf(dtype); }
};

// Bus over algorithm bandwidth: 2 (n - 1) / n for allreduce, (n - 1) / n for all_gather, reduce_scatter and
// all_to_all, else 1.
double BusFactor(BenchOp op, int ranks);

}  // namespace tandem::bench

#endif  // TANDEM_BENCH_HARNESS_BENCH_CASE_H_
