// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_CLIENT_BYTES_IN_FLIGHT_H_
#define TANDEM_PS_CLIENT_BYTES_IN_FLIGHT_H_

#include <cstdint>
#include <functional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace tandem::ps {

// Limits the memory that the calls of a client use at any one time. The calls under way are counted in bytes,
// and a call that would exceed the limit waits. A call that is larger than the limit runs when it is the only
// one. Waiting calls have no order: small ones may pass a large one that does not fit yet. Must outlive its
// Shares. Thread-safe.
class BytesInFlight {
 public:
  // The bytes of one call. The destructor releases them. Movable.
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

  // Blocks until `bytes` more are within the limit, for at most `timeout`; 0 means no wait. Returns
  // ResourceExhausted, with the numbers and advice, if they do not fit by then. Calls `go_on` about every
  // 100 ms of the wait, unless it is null; Cancelled if it returns false.
  absl::StatusOr<Share> Take(uint64_t bytes, absl::Duration timeout,
                             const std::function<bool()>& go_on = nullptr);

  // Returns the bytes that the calls under way hold.
  uint64_t held() const;

 private:
  void Release(uint64_t bytes);

  const uint64_t limit_;
  mutable absl::Mutex mutex_;
  uint64_t held_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_CLIENT_BYTES_IN_FLIGHT_H_
