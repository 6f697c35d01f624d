// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_CLIENT_PUSH_WINDOW_H_
#define TANDEM_PS_CLIENT_PUSH_WINDOW_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace tandem::ps {

// The window of servers that do not tell theirs.
inline constexpr uint64_t kDefaultPushWindow = 256;

// Numbers the pushes of one push epoch of a client with sequences 1, 2, 3, ... and limits the distance
// between the sequences of those under way, because a server's push fence refuses pushes from before its
// window (v1::ServerInfo.push_window). Thread-safe. Owned by a shared_ptr, since Slots keep it alive.
class PushWindow : public std::enable_shared_from_this<PushWindow> {
 public:
  // The epoch and sequence of one push. The destructor says that no copy of the push will be sent any more.
  // Movable.
  class Slot {
   public:
    Slot() = default;
    Slot(Slot&& other) noexcept
        : window_(std::move(other.window_)), epoch_(other.epoch_), sequence_(other.sequence_) {}
    Slot& operator=(Slot&& other) noexcept {
      std::swap(window_, other.window_);
      std::swap(epoch_, other.epoch_);
      std::swap(sequence_, other.sequence_);
      return *this;
    }
    ~Slot() { Release(); }
    uint64_t epoch() const { return epoch_; }
    uint64_t sequence() const { return sequence_; }
    // Does what the destructor does. No effect if it was called before.
    void Release() {
      if (const std::shared_ptr<PushWindow> window = std::exchange(window_, nullptr))
        window->Release(sequence_);
    }

   private:
    friend class PushWindow;
    Slot(std::shared_ptr<PushWindow> window, uint64_t epoch, uint64_t sequence)
        : window_(std::move(window)), epoch_(epoch), sequence_(sequence) {}
    std::shared_ptr<PushWindow> window_;
    uint64_t epoch_ = 0;
    uint64_t sequence_ = 0;
  };

  // Sequences s and t may be under way at the same time if |s - t| < size. Requires size > 0. `epoch` is that
  // of the slots.
  PushWindow(uint64_t epoch, uint64_t size) : epoch_(epoch), size_(size) {}
  uint64_t size() const { return size_; }

  // Returns the next sequence, for a push of `step`. Blocks until it is within the window, for at most
  // `timeout`; 0 means no wait. Returns ResourceExhausted, naming the oldest push, if it is not by then.
  // Calls `go_on` about every 100 ms of the wait, unless it is null; Cancelled if it returns false.
  absl::StatusOr<Slot> Take(uint64_t step, absl::Duration timeout,
                            const std::function<bool()>& go_on = nullptr);

 private:
  bool HasSpace() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return steps_.empty() || next_ - steps_.begin()->first < size_;
  }
  void Release(uint64_t sequence);

  const uint64_t epoch_;
  const uint64_t size_;
  absl::Mutex mutex_;
  uint64_t next_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<uint64_t, uint64_t> steps_ ABSL_GUARDED_BY(mutex_);  // of the pushes under way, by sequence
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_CLIENT_PUSH_WINDOW_H_
