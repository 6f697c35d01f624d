#ifndef TANDEM_BASE_BUFFER_POOL_H_
#define TANDEM_BASE_BUFFER_POOL_H_

// Large buffers that are used for a moment and come back: message payloads. Taking them from malloc each time
// would fault in fresh pages for every message.

#include <array>
#include <cstddef>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace tandem {

// Thread-safe. Buffers may outlive the pool; they are then simply freed.
class BufferPool {
 public:
  // Keeps at most `max_idle_bytes` of buffers that nobody uses.
  explicit BufferPool(size_t max_idle_bytes = size_t{64} << 20)
      : state_(std::make_shared<State>(max_idle_bytes)) {}

  // At least `size` bytes, 64-byte aligned, contents unspecified. Goes back to the pool when the last copy of
  // the pointer is dropped, on whatever thread.
  std::shared_ptr<char> Get(size_t size);

 private:
  // Capacities are powers of two: idle buffers stand by their logarithm.
  static constexpr size_t kCapacities = 64;
  struct State {
    explicit State(size_t limit) : max_idle_bytes(limit) {}
    ~State();
    const size_t max_idle_bytes;
    absl::Mutex mutex;
    // Last in, first out: the warmest memory first.
    std::array<std::vector<char*>, kCapacities> idle ABSL_GUARDED_BY(mutex);
    size_t idle_bytes ABSL_GUARDED_BY(mutex) = 0;
  };
  std::shared_ptr<State> state_;
};

}  // namespace tandem

#endif  // TANDEM_BASE_BUFFER_POOL_H_
