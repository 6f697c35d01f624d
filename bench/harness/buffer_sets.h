#ifndef TANDEM_BENCH_HARNESS_BUFFER_SETS_H_
#define TANDEM_BENCH_HARNESS_BUFFER_SETS_H_

// The buffers that a measurement goes round: an operation that is always given the same ones finds them in
// the caches as no program would (the warning of XHC's authors).

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/harness/bench_case.h"

namespace tandem::bench {

// Owns them. Not thread-safe.
class BufferSets {
 public:
  // As many sets as fit into kBytes, a power of two from 2 to 16, full of ones, on cache lines of their own.
  // In place, one of in and out is the other, or part `rank` of the other. ResourceExhausted.
  static absl::StatusOr<BufferSets> Make(const BenchCase& bench_case, int rank);
  BufferSets(BufferSets&& other) noexcept;
  BufferSets& operator=(BufferSets&&) = delete;
  ~BufferSets();

  static constexpr size_t kBytes = 16 << 20;

  size_t size() const { return ins_.size(); }
  // Of iteration i.
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
