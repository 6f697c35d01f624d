// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BASE_BUFFER_POOL_H_
#define TANDEM_BASE_BUFFER_POOL_H_

// A pool of large buffers with short lifetimes: message payloads. Allocating them with malloc each time would
// fault in fresh pages for every message.

#include <array>
#include <cstddef>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace tandem {

// A pool of buffers. Thread-safe. Buffers may outlive the pool; they are then freed when they are dropped.
class BufferPool {
 public:
  // The pool keeps at most `max_idle_bytes` of unused buffers.
  explicit BufferPool(size_t max_idle_bytes = size_t{64} << 20)
      : state_(std::make_shared<State>(max_idle_bytes)) {}

  // Returns at least `size` bytes, 64-byte aligned, with unspecified contents. The buffer returns to the pool
  // when the last copy of the pointer is dropped, on any thread.
  std::shared_ptr<char> Get(size_t size);

 private:
  // Capacities are powers of two. idle[i] holds the unused buffers of 2^i bytes.
  static constexpr size_t kCapacities = 64;
  struct State {
    explicit State(size_t limit) : max_idle_bytes(limit) {}
    ~State();
    const size_t max_idle_bytes;
    absl::Mutex mutex;
    // Last in, first out: the memory used most recently is likely to be in a cache.
    std::array<std::vector<char*>, kCapacities> idle ABSL_GUARDED_BY(mutex);
    size_t idle_bytes ABSL_GUARDED_BY(mutex) = 0;
  };
  std::shared_ptr<State> state_;
};

}  // namespace tandem

#endif  // TANDEM_BASE_BUFFER_POOL_H_
