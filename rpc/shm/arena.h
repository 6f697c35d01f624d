#ifndef TANDEM_RPC_SHM_ARENA_H_
#define TANDEM_RPC_SHM_ARENA_H_

// Gives out the payload memory of one direction: the sender's books, which the peer cannot damage.
//
// A block is a run of pages. It is free again when nobody here holds it and the peer has given it back as
// often as it was sent (a retried request sends its block twice). The peer does so by counting up a word for
// the block's first page, in any order and from any thread, without a message: whoever needs memory looks.

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace tandem::rpc::shm {

// Thread-safe.
class Arena {
 public:
  // `released` has a counter for each of `pages` pages, which the peer writes.
  Arena(const std::atomic<uint32_t>* released, uint32_t pages);

  // A block of at least `bytes` > 0 that is held, by its first page; nothing when there is none, or when less
  // than `reserve` pages would be left.
  std::optional<uint32_t> Take(size_t bytes, size_t reserve);
  // The largest block there is of at most `most` bytes, if it has `least` bytes; its size goes to *bytes.
  std::optional<uint32_t> TakeUpTo(size_t most, size_t least, size_t* bytes);

  // The first page of the block that `page`, a page of a held block, belongs to.
  uint32_t BlockOf(uint32_t page);
  // Counts that the block has been sent once more. It is held.
  void Sent(uint32_t block);
  // Nobody here holds it any more.
  void Release(uint32_t block);

  // Pages that are neither held nor at the peer's.
  size_t free_pages();
  size_t pages() const { return pages_; }

 private:
  struct Block {
    uint32_t pages = 0;
    uint32_t sends = 0;
    uint32_t base = 0;  // of the peer's counter, when it was taken
  };
  // Looks at up to `most` blocks that are let go, the oldest first, and frees those that came back.
  void Reclaim(size_t most) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<uint32_t> Find(uint32_t pages) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<uint32_t> Cut(std::map<uint32_t, uint32_t>::iterator run, uint32_t begin, uint32_t pages)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Free(uint32_t block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::atomic<uint32_t>* const released_;
  const size_t pages_;
  const uint32_t window_;  // pages that are used round and round while they suffice
  absl::Mutex mutex_;
  std::vector<Block> blocks_ ABSL_GUARDED_BY(mutex_);          // by first page
  std::vector<uint32_t> block_of_ ABSL_GUARDED_BY(mutex_);     // of each page in a block
  std::map<uint32_t, uint32_t> free_ ABSL_GUARDED_BY(mutex_);  // first page -> pages, never adjacent
  std::deque<uint32_t> away_ ABSL_GUARDED_BY(mutex_);          // let go, not yet come back
  size_t free_pages_ ABSL_GUARDED_BY(mutex_);
  uint32_t cursor_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace tandem::rpc::shm

#endif  // TANDEM_RPC_SHM_ARENA_H_
