#ifndef TANDEM_BASE_COPY_CHOICE_H_
#define TANDEM_BASE_COPY_CHOICE_H_

// How large arrays are written into memory that the other side of a shared-memory connection has read before.
//
// A plain store first fetches the line, which may lie in the other core's cache. Where two cores share a
// cache that is cheap (10 ns for 256 bytes), and the reader finds the new line there, too. Where they do not
// (or while a virtual machine's cores are laid so) it is a round trip between them: 35 to 100 ns. Stores that
// go around the caches cost 11 ns in either case, and the reader some 10 ns more. Which it is changes from
// minute to minute and cannot be asked for, so it is measured: by what both ways took of late.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace tandem {

// Thread-safe.
class CopyChoice {
 public:
  enum Way { kPlain, kAroundCaches };
  // Fewer bytes are written plainly: the reader has them in a near cache.
  static constexpr size_t kWorthChoosing = size_t{256} << 10;
  // What plain writing may take more, in per cent, and still be the better way, since the reader is the
  // faster for it. Of copies: 10 ns against 16 for 256 bytes. Of gathers, which wait for the table as well:
  // 34 against 38, while the reader takes some 10 more.
  static constexpr uint64_t kOfCopies = 180;
  static constexpr uint64_t kOfGathers = 125;

  explicit CopyChoice(uint64_t plain_may_take) : plain_may_take_(plain_may_take) {}

  void Copy(char* to, const char* from, size_t bytes);

  // What Copy does, in steps. The way that is better, or now and then the other one.
  Way Next();
  // Writing so many bytes that way took so long.
  void Note(Way way, size_t bytes, int64_t nanoseconds);

 private:
  // Of a way's last copies: the fastest is what the memory makes of it, the others were interrupted.
  static constexpr size_t kRemembered = 4;
  using Costs = std::array<std::atomic<uint32_t>, kRemembered>;  // ns a MiB; 0: none yet

  static uint32_t Least(const Costs& costs);

  const uint64_t plain_may_take_;
  Costs costs_[2] = {};
  std::atomic<uint32_t> noted_[2] = {};
  std::atomic<uint32_t> copies_{0};
};

}  // namespace tandem

#endif  // TANDEM_BASE_COPY_CHOICE_H_
