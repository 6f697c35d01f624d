// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BENCH_HARNESS_BUFFER_SETS_H_
#define TANDEM_BENCH_HARNESS_BUFFER_SETS_H_

// The buffers of a measurement. Successive operations use several sets of buffers in turn. An operation that
// always gets the same buffers would find them in the processor's caches, unlike in real programs, as the
// authors of XHC (the shared-memory collectives of Open MPI) warn.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/harness/bench_case.h"

namespace tandem::bench {

// Owns the sets of buffers of one rank, in the memory of the CPU. A set is one input and one output buffer.
// Const methods may run concurrently; the threads that use the buffers' contents synchronise themselves.
class BufferSets {
 public:
  // Allocates the sets that rank `rank` needs for `bench_case`, and sets every element to 1. The number of
  // sets is the largest power of two, from 2 to 16, with which all sets fit into kBytes; it is 2 even if two
  // sets do not fit. The input has bench_case.in_count() elements and the output out_count().
  //
  // No two buffers share a cache line, with one exception: if bench_case.in_place is true, the input and the
  // output of a set overlap. The smaller one is then part number `rank` of the larger one; if they have the
  // same size, they are the same buffer.
  //
  // ResourceExhausted: not enough memory.
  static absl::StatusOr<BufferSets> Make(const BenchCase& bench_case, int rank);
  // `other` may then only be destroyed.
  BufferSets(BufferSets&& other) noexcept;
  BufferSets& operator=(BufferSets&&) = delete;
  ~BufferSets();

  // The memory that all sets together should not exceed.
  static constexpr size_t kBytes = 16 << 20;

  // Returns the number of sets.
  size_t size() const { return ins_.size(); }
  // Return the buffers of iteration `i`, those of set i modulo size(). They are valid until the BufferSets,
  // or the one that it was moved to, is destroyed.
  void* in(uint64_t i) const { return ins_[i & (ins_.size() - 1)]; }
  void* out(uint64_t i) const { return outs_[i & (outs_.size() - 1)]; }

 private:
  BufferSets() = default;
  void* memory_ = nullptr;
  size_t mapped_bytes_ = 0;
  std::vector<void*> ins_, outs_;
};

}  // namespace tandem::bench

#endif  // TANDEM_BENCH_HARNESS_BUFFER_SETS_H_
