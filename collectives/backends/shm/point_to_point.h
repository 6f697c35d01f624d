// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_BACKENDS_SHM_POINT_TO_POINT_H_
#define TANDEM_COLLECTIVES_BACKENDS_SHM_POINT_TO_POINT_H_

// Messages between two ranks, through a ring of frames for each ordered pair. A frame is a header, and for
// some types a payload. The payload is streamed, so it may be larger than the ring.
//
// Any thread that waits moves the data of all transfers of this rank. A thread of this object does so for
// transfers for which no thread waits; the first such transfer starts it.
//
// A MessageMatcher decides where each message goes. A rank keeps up to CreditBytes() of unmatched messages of
// each sender in memory.

#include <atomic>
#include <deque>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "collectives/backend.h"
#include "collectives/backends/shm/segment.h"
#include "collectives/backends/shm/shared_failure_state.h"
#include "collectives/backends/shm/wait.h"
#include "collectives/messages/message_matcher.h"

namespace tandem::collectives::shm {

inline constexpr size_t kMostUnexpectedBytes = 16 << 20;
// Returns how many bytes of unmatched messages a rank keeps for each sender: an equal share of
// kMostUnexpectedBytes, but at least 1 MiB.
constexpr size_t CreditBytes(int world_size) {
  const size_t share = kMostUnexpectedBytes / static_cast<size_t>(world_size > 2 ? world_size - 1 : 1);
  return share < (1 << 20) ? (1 << 20) : share;
}

// Sends and receives one rank's messages. Thread-safe.
class PointToPoint : private MessageMatcher::Transport {
 public:
  // `failures` must outlive this object.
  PointToPoint(std::shared_ptr<Segment> segment, SharedFailureState* failures, int rank, std::string group);
  // Waits up to 2 s until all sends are in the rings; ends the remaining transfers with Aborted.
  ~PointToPoint() override;

  // These behave as Backend::StartPointToPoint and RunPointToPoint.
  void Start(const Operation& operation, Backend::Done done);
  absl::StatusOr<int> Run(const Operation& operation);

 private:
  // A send or recv that is not done.
  struct Transfer : MessageTransfer {
    using MessageTransfer::MessageTransfer;
    Backend::Done done;       // empty if a thread waits in Run; that thread then owns the transfer
    int64_t deadline_ns = 0;  // set if `done` is set
    std::atomic<bool> finished{false};
    absl::StatusOr<int> result = 0;
  };
  enum class Type : uint8_t {
    kMessage = 1,  // the message follows
    kRequest,      // announces message `id` of the sender, which follows when it is granted
    kGrant,        // to the sender: send message `id`
    kRefusal,  // to the sender: message `id` was matched by a recv that it does not fit, and is not needed
    kPayload,  // the granted message `id` follows
    kTaken,    // to the sender: messages of `bytes` bytes have been matched
  };
  // Begins each frame.
  struct Header {
    uint32_t magic;
    uint32_t tag;
    uint64_t bytes;
    uint64_t id;
    uint8_t dtype;
    Type type;
    uint8_t unused[6];
  };
  static_assert(sizeof(Header) == 32);
  // A frame on its way into a ring.
  struct Frame {
    Header header;
    Transfer* send;      // of kMessage and kPayload: the data; else nullptr
    bool begun = false;  // the header is in the ring
  };
  // The frame that is being read from a rank's ring.
  struct Incoming {
    bool begun = false;  // the header has been read and handled
    Header header;
    size_t moved = 0;
  };
  using Finished = std::vector<Transfer*>;  // their `done` must be called, without the lock

  // Returns OK unless the peer is no rank, or the group has failed.
  absl::Status CheckNew(const Operation& operation) const;
  // MessageMatcher::Transport; the mutex is held.
  void Finish(MessageTransfer* transfer, absl::StatusOr<int> result) override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Answer(int to, uint64_t id, bool wanted) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReturnCredit(int to, uint64_t bytes) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void Begin(Transfer* transfer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Moves data as far as possible without waiting; ends all transfers if the group has failed.
  void Progress() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ProgressSends(int to) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ProgressReceives(int from) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Handles the header of a frame from rank `from`. Returns false if the peer should not have sent it.
  bool HeaderArrived(int from, const Header& header) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Queues a frame without payload.
  void Reply(int to, Type type, uint64_t id, uint64_t bytes = 0) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Starts the thread, if there is work for it.
  void EnsureThread() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool ThreadHasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !started_.empty() || num_replies_ > 0;
  }
  // Fails the group if a transfer waits for a rank that had left (one bit for each) before the last check.
  void FailIfAwaited(uint64_t left) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Damaged(int rank) const;
  absl::Status TimedOut(const Operation& operation) const;
  void EndAll(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Calls the callbacks of finished transfers, and wakes the threads that wait in Run.
  void Notify(const Finished& finished);
  // Returns a number that changes whenever a peer has written to or read from a ring of this rank, or has
  // left.
  uint64_t Activity() const;
  uint64_t RanksThatLeft() const;
  void RunThread();

  const std::shared_ptr<Segment> segment_;
  SharedFailureState* const failures_;
  const int rank_;
  const int world_size_;
  const std::string group_;
  const SpinPolicy spin_policy_;
  WakeupWord& wakeup_;

  absl::Mutex mutex_;
  // The traffic with one other rank.
  struct Peer {
    std::deque<Frame> outgoing;  // in order
    uint64_t space_seen = 0;     // how far the peer has read
    Incoming incoming;
  };
  std::vector<Peer> peers_ ABSL_GUARDED_BY(mutex_);  // by rank
  MessageMatcher matcher_ ABSL_GUARDED_BY(mutex_);
  Finished finished_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;         // of a send
  size_t num_replies_ ABSL_GUARDED_BY(mutex_) = 0;       // frames without payload in all `outgoing`
  std::set<Transfer*> started_ ABSL_GUARDED_BY(mutex_);  // all transfers that have a `done`
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::atomic<uint32_t> wake_count_{0};  // wakes the thread: a transfer was started, or the thread must stop
  std::thread thread_;                   // set under mutex_, joined by the destructor
};

}  // namespace tandem::collectives::shm

#endif  // TANDEM_COLLECTIVES_BACKENDS_SHM_POINT_TO_POINT_H_
