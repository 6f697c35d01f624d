#ifndef TANDEM_PS_CLIENT_BYTES_IN_FLIGHT_H_
#define TANDEM_PS_CLIENT_BYTES_IN_FLIGHT_H_

#include <cstdint>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace tandem::ps {

// Bounds the memory that a client's calls hold at any one time: those under way are counted in bytes, and one
// that would go beyond the limit waits. A call that alone is larger than the limit goes alone. Waiting calls
// are let through in no particular order, small ones before a large one that does not fit yet. Thread-safe;
// outlives its Shares.
class BytesInFlight {
 public:
  // What one call has taken; gives it back when it goes. Movable.
  class Share {
   public:
    Share() = default;
    Share(Share&& other) noexcept
        : owner_(std::exchange(other.owner_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
    Share& operator=(Share&& other) noexcept {
      std::swap(owner_, other.owner_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Share() {
      if (owner_ != nullptr) owner_->Release(bytes_);
    }

   private:
    friend class BytesInFlight;
    Share(BytesInFlight* owner, uint64_t bytes) : owner_(owner), bytes_(bytes) {}
    BytesInFlight* owner_ = nullptr;
    uint64_t bytes_ = 0;
  };

  explicit BytesInFlight(uint64_t limit) : limit_(limit) {}

  // Waits until `bytes` more are within the limit, at most `patience` (0: not at all). ResourceExhausted,
  // with the figures and what to do, when they are not by then.
  absl::StatusOr<Share> Take(uint64_t bytes, absl::Duration patience);

  uint64_t held() const;

 private:
  void Release(uint64_t bytes);

  const uint64_t limit_;
  mutable absl::Mutex mutex_;
  uint64_t held_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_CLIENT_BYTES_IN_FLIGHT_H_
