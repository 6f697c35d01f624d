// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BENCH_HARNESS_BUFFER_SETS_H_
#define TANDEM_BENCH_HARNESS_BUFFER_SETS_H_

// The buffers of a measurement, used in turn. An operation that always gets the same buffers would find them
// in the caches, unlike in real programs (the warning of XHC's authors).

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/harness/bench_case.h"

namespace tandem::bench {

// Owns several sets of buffers. Not thread-safe.
class BufferSets {
 public:
  // Allocates as many sets as fit into kBytes, a power of two from 2 to 16 (2 even if they do not fit),
  // filled with ones. Buffers do not share cache lines. In place, the smaller of `in` and `out` is part
  // `rank` of the other; if they have the same size, they are the same buffer. ResourceExhausted: not enough
  // memory.
  static absl::StatusOr<BufferSets> Make(const BenchCase& bench_case, int rank);
  BufferSets(BufferSets&& other) noexcept;
  BufferSets& operator=(BufferSets&&) = delete;
  ~BufferSets();

  static constexpr size_t kBytes = 16 << 20;

  size_t size() const { return ins_.size(); }
  // The buffers of iteration i.
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
