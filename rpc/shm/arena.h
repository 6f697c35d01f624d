// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_SHM_ARENA_H_
#define TANDEM_RPC_SHM_ARENA_H_

// Allocates the payload memory of one direction. The allocator's state belongs to the sender, and the peer
// cannot damage it.
//
// A block is a run of pages. It is free again once no owner in this process holds it and the peer has
// released it as often as it was sent (a retried request sends its block twice). To release a block, the peer
// increments the counter of the block's first page, in any order, from any thread and without a message. The
// sender checks these counters when it needs memory.

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace tandem::rpc::shm {

// The allocator of one direction's payload memory. Thread-safe.
class Arena {
 public:
  // `released` has a counter for each of the `pages` pages. The peer writes the counters.
  Arena(const std::atomic<uint32_t>* released, uint32_t pages);

  // Allocates a block of at least `bytes` > 0 and returns its first page. The block is held until Release().
  // Returns nullopt if there is no such block, or if fewer than `reserve` pages would remain free.
  std::optional<uint32_t> Take(size_t bytes, size_t reserve);
  // Like Take, but allocates `most` bytes if there is such a block, else the largest free block if it has at
  // least `least` bytes. Sets *bytes to the size.
  std::optional<uint32_t> TakeUpTo(size_t most, size_t least, size_t* bytes);

  // Returns the first page of the block that contains `page`, which must be in a held block.
  uint32_t BlockOf(uint32_t page);
  // Counts that the block was sent once more. The block must be held.
  void Sent(uint32_t block);
  // Ends the hold on the block: this process does not use it any more.
  void Release(uint32_t block);

  // Returns the number of pages that are neither held nor in use by the peer.
  size_t free_pages();
  size_t pages() const { return pages_; }

 private:
  // The block that begins at a page; pages is 0 if none does.
  struct Block {
    uint32_t pages = 0;
    uint32_t sends = 0;
    uint32_t base = 0;  // the peer's counter when the block was taken
  };
  // Checks up to `most` released blocks, oldest first, and frees those that the peer has returned.
  void Reclaim(size_t most) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Allocates a run of `pages` pages, if there is one.
  std::optional<uint32_t> Find(uint32_t pages) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Allocates the `pages` pages at `begin`, which lie in the free run `run`.
  std::optional<uint32_t> Cut(std::map<uint32_t, uint32_t>::iterator run, uint32_t begin, uint32_t pages)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Adds the block's pages to the free runs.
  void Free(uint32_t block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::atomic<uint32_t>* const released_;
  const size_t pages_;
  const uint32_t window_;  // the pages that are reused cyclically while they suffice
  absl::Mutex mutex_;
  std::vector<Block> blocks_ ABSL_GUARDED_BY(mutex_);          // by first page
  std::vector<uint32_t> block_of_ ABSL_GUARDED_BY(mutex_);     // the block of each page in a block
  std::map<uint32_t, uint32_t> free_ ABSL_GUARDED_BY(mutex_);  // first page -> pages, never adjacent
  // Blocks that this process has released and the peer has not returned.
  std::deque<uint32_t> awaiting_return_ ABSL_GUARDED_BY(mutex_);
  size_t free_pages_ ABSL_GUARDED_BY(mutex_);
  uint32_t cursor_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace tandem::rpc::shm

#endif  // TANDEM_RPC_SHM_ARENA_H_
