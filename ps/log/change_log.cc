// SPDX-License-Identifier: Apache-2.0
#include "ps/log/change_log.h"

#include <deque>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace tandem::ps {

// The space of the queue, and the pushes that wait for some. The Spaces own it, so that they may outlive the
// log.
class ChangeLog::Queue : public std::enable_shared_from_this<Queue> {
 public:
  explicit Queue(uint64_t max_bytes) : max_bytes_(max_bytes) {}

  std::shared_ptr<Space> Take(uint64_t bytes) {
    absl::MutexLock lock(&mutex_);
    if (!waiting_.empty()) return nullptr;  // those were first
    if (!FitsLocked(bytes)) return nullptr;
    bytes_ += bytes;
    return std::make_shared<Space>(shared_from_this(), bytes);
  }

  void Await(uint64_t bytes, Granted granted) {
    if (std::shared_ptr<Space> space = Take(bytes); space != nullptr) return granted(std::move(space));
    {
      absl::MutexLock lock(&mutex_);
      ++waits_;
      if (stopped_) return;
      waiting_.push_back({bytes, std::move(granted)});
    }
    Release(0);  // the queue may have emptied meanwhile
  }

  void Release(uint64_t bytes) {
    while (true) {
      Waiting next;
      std::shared_ptr<Space> space;
      {
        absl::MutexLock lock(&mutex_);
        bytes_ -= std::exchange(bytes, 0);
        if (waiting_.empty() || stopped_) return;
        next.bytes = waiting_.front().bytes;
        if (!FitsLocked(next.bytes)) return;
        next = std::move(waiting_.front());
        waiting_.pop_front();
        bytes_ += next.bytes;
        space = std::make_shared<Space>(shared_from_this(), next.bytes);
      }
      next.granted(std::move(space));
    }
  }

  void Block(bool blocked) {
    {
      absl::MutexLock lock(&mutex_);
      blocked_ = blocked;
    }
    if (!blocked) Release(0);
  }

  void Stop() {
    std::deque<Waiting> waiting;  // destroyed outside the lock
    absl::MutexLock lock(&mutex_);
    stopped_ = true;
    waiting.swap(waiting_);
  }

  uint64_t waits() const {
    absl::MutexLock lock(&mutex_);
    return waits_;
  }

 private:
  struct Waiting {
    uint64_t bytes = 0;
    Granted granted;
  };
  bool FitsLocked(uint64_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !blocked_ && (bytes_ == 0 || bytes_ + bytes <= max_bytes_);
  }

  const uint64_t max_bytes_;
  mutable absl::Mutex mutex_;
  std::deque<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
  uint64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of the Spaces
  uint64_t waits_ ABSL_GUARDED_BY(mutex_) = 0;
  bool blocked_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
};

ChangeLog::Space::~Space() { queue_->Release(bytes_); }

ChangeLog::ChangeLog(uint64_t max_queued_bytes) : queue_(std::make_shared<Queue>(max_queued_bytes)) {}
ChangeLog::~ChangeLog() { queue_->Stop(); }
std::shared_ptr<ChangeLog::Space> ChangeLog::TakeSpace(uint64_t bytes) { return queue_->Take(bytes); }
void ChangeLog::AwaitSpace(uint64_t bytes, Granted granted) { queue_->Await(bytes, std::move(granted)); }
uint64_t ChangeLog::space_waits() const { return queue_->waits(); }
void ChangeLog::BlockSpace(bool blocked) { queue_->Block(blocked); }
void ChangeLog::StopSpace() { queue_->Stop(); }

}  // namespace tandem::ps
