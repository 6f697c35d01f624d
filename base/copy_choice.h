// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BASE_COPY_CHOICE_H_
#define TANDEM_BASE_COPY_CHOICE_H_

// CopyChoice decides how large arrays are written into memory that the other side of a shared-memory
// connection has read before: with plain (cached) stores or with streaming stores, which bypass the caches.
//
// A plain store first fetches the cache line, which may be in the other core's cache. If the two cores share
// a cache, that is cheap (10 ns for 256 bytes) and the reader finds the new line in that cache too. If they
// do not share one, it is a round trip between them (35 to 100 ns). Streaming stores cost 11 ns in either
// case, and the reader about 10 ns more. Which case applies changes from minute to minute on virtual machines
// and cannot be queried. CopyChoice therefore measures both ways and takes the better one.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace tandem {

// Thread-safe.
class CopyChoice {
 public:
  enum Way { kPlain, kAroundCaches };
  // Arrays of fewer bytes are always written with plain stores, because they stay in a near cache of the
  // reader.
  static constexpr size_t kWorthChoosing = size_t{256} << 10;
  // The largest time of plain stores, in percent of the time of streaming stores, at which plain stores are
  // still preferred: the reader then finds the data in its cache. Measured for 256 bytes with plain and with
  // streaming stores: a copy takes 10 and 16 ns; a gather, which also waits for the table, takes 34 and 38
  // ns. After streaming stores the reader needs about 10 ns more.
  static constexpr uint64_t kOfCopies = 180;
  static constexpr uint64_t kOfGathers = 125;

  // `plain_may_take` is kOfCopies or kOfGathers.
  explicit CopyChoice(uint64_t plain_may_take) : plain_may_take_(plain_may_take) {}

  // Copies `bytes` bytes in the better way and measures the time.
  void Copy(char* to, const char* from, size_t bytes);

  // Next and Note are the steps of Copy, for callers that write the memory themselves. Next returns the way
  // to use: the better one, or occasionally the other one, to measure it.
  Way Next();
  // Notes that writing `bytes` bytes in this way took `nanoseconds`.
  void Note(Way way, size_t bytes, int64_t nanoseconds);

 private:
  // The number of copies remembered for each way. The fastest of them counts, because others may have been
  // interrupted.
  static constexpr size_t kRemembered = 4;
  using Costs = std::array<std::atomic<uint32_t>, kRemembered>;  // ns per MiB; 0: not measured yet

  static uint32_t Least(const Costs& costs);

  const uint64_t plain_may_take_;
  Costs costs_[2] = {};
  std::atomic<uint32_t> noted_[2] = {};
  std::atomic<uint32_t> copies_{0};
};

}  // namespace tandem

#endif  // TANDEM_BASE_COPY_CHOICE_H_
