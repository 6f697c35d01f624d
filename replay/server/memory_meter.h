// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_REPLAY_SERVER_MEMORY_METER_H_
#define TANDEM_REPLAY_SERVER_MEMORY_METER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "replay/chunks/chunk.h"

namespace tandem::replay {

// Counts the memory of a server's chunks while anything refers to them: items, writers, waiting calls,
// answers. Thread-safe. Chunks may outlive the meter.
class MemoryMeter {
 public:
  // Counts `bytes` more, unless that would be more than `max`; then it returns false.
  bool Reserve(uint64_t bytes, uint64_t max) {
    uint64_t before = *bytes_;
    do {
      if (before + bytes > max) return false;
    } while (!bytes_->compare_exchange_weak(before, before + bytes));
    return true;
  }
  void Release(uint64_t bytes) { *bytes_ -= bytes; }
  // Returns a chunk that is counted until its last reference is dropped.
  std::shared_ptr<const Chunk> Count(std::unique_ptr<const Chunk> chunk) {
    *bytes_ += Cost(chunk->bytes());
    return Share(std::move(chunk));
  }
  // Does the same for a chunk whose Cost has been reserved.
  std::shared_ptr<const Chunk> Share(std::unique_ptr<const Chunk> chunk) {
    const uint64_t bytes = Cost(chunk->bytes());
    return std::shared_ptr<const Chunk>(chunk.release(), [total = bytes_, bytes](const Chunk* dropped) {
      delete dropped;
      *total -= bytes;
    });
  }
  // Returns what is counted for a chunk with values of `bytes` bytes.
  static uint64_t Cost(uint64_t bytes) { return bytes + kOverhead; }
  uint64_t bytes() const { return *bytes_; }

 private:
  // Bytes of a chunk besides its values: the object, its allocations, and its place in the writer's map.
  static constexpr uint64_t kOverhead = sizeof(Chunk) + 112;
  std::shared_ptr<std::atomic<uint64_t>> bytes_ = std::make_shared<std::atomic<uint64_t>>(0);
};

}  // namespace tandem::replay

#endif  // TANDEM_REPLAY_SERVER_MEMORY_METER_H_
