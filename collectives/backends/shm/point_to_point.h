// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_BACKENDS_SHM_POINT_TO_POINT_H_
#define TANDEM_COLLECTIVES_BACKENDS_SHM_POINT_TO_POINT_H_

// Messages between two ranks, through a ring of frames for each ordered pair. A frame is a header, and for
// some types a payload. The payload is streamed, so it may be larger than the ring.
//
// Any thread that waits moves the data of all transfers of this rank. A thread of this object does so for
// transfers for which no thread waits; the first such transfer starts it.
//
// A message that no recv matches yet is kept in the receiver's memory, up to CreditBytes() of each sender. A
// message beyond that is only announced. Its data follows, directly into place, when a recv has been matched
// to it. So unexpected messages of any size never delay later ones, as over the other transports.

#include <atomic>
#include <deque>
#include <list>
#include <map>
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

namespace tandem::collectives::shm {

inline constexpr size_t kMostUnexpectedBytes = 16 << 20;
// Returns how many bytes of unmatched messages a rank keeps for each sender: an equal share of
// kMostUnexpectedBytes, but at least 1 MiB.
constexpr size_t CreditBytes(int world_size) {
  const size_t share = kMostUnexpectedBytes / static_cast<size_t>(world_size > 2 ? world_size - 1 : 1);
  return share < (1 << 20) ? (1 << 20) : share;
}

// Sends and receives one rank's messages. Thread-safe.
class PointToPoint {
 public:
  // `failures` must outlive this object.
  PointToPoint(std::shared_ptr<Segment> segment, SharedFailureState* failures, int rank, std::string group);
  // Waits up to 2 s until all sends are in the rings; ends the remaining transfers with Aborted.
  ~PointToPoint();

  // These behave as Backend::StartPointToPoint and RunPointToPoint.
  void Start(const Operation& operation, Backend::Done done);
  absl::StatusOr<int> Run(const Operation& operation);

 private:
  // A send or recv that is not done.
  struct Transfer {
    Operation operation;
    Backend::Done done;       // empty if a thread waits in Run; that thread then owns the transfer
    int64_t deadline_ns = 0;  // set if `done` is set
    size_t bytes = 0;
    size_t moved = 0;
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
  // A message that arrived, or was announced, before its recv.
  struct Unexpected {
    int source;
    Header header;                 // kMessage or kRequest
    std::unique_ptr<char[]> data;  // of kMessage
    bool complete = false;
    Transfer* claimed_by = nullptr;  // gets the message when it is complete
  };
  // The frame that is being read from a rank's ring. Its payload goes to `recv`, to `unexpected`, or nowhere.
  struct Incoming {
    bool begun = false;  // the header has been read and handled
    Header header;
    size_t moved = 0;
    Transfer* recv = nullptr;
    Unexpected* unexpected = nullptr;
  };
  using Finished = std::vector<Transfer*>;  // their `done` must be called, without the lock

  // Returns OK unless the peer is no rank, or the group has failed.
  absl::Status CheckNew(const Operation& operation) const;
  void Begin(Transfer* transfer, Finished* finished) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void BeginRecv(Transfer* recv, Finished* finished) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SendToSelf(Transfer* send, Finished* finished) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Moves data as far as possible without waiting; ends all transfers if the group has failed.
  void Progress(Finished* finished) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ProgressSends(int to, Finished* finished) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ProgressReceives(int from, Finished* finished) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Handles the header of a frame from rank `from`, and sets the destination of its payload. Returns false if
  // the peer should not have sent it.
  bool HeaderArrived(int from, Incoming& incoming, Finished* finished) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Queues a frame without payload.
  void Reply(int to, Type type, uint64_t id, uint64_t bytes = 0) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Lets the sender of `message`, which it announced, send it to `recv`; or refuses it, if it does not fit.
  void Answer(int from, const Header& message, Transfer* recv, Finished* finished)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Records that a message of rank `from` needs no memory for unmatched messages any more.
  void Taken(int from, const Header& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Starts the thread, if there is work for it.
  void EnsureThread(Finished* finished) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool ThreadHasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !started_.empty() || num_replies_ > 0;
  }
  // Removes and returns the first recv that matches such a message; nullptr if there is none.
  Transfer* TakeRecv(int from, uint32_t tag) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Gives a complete message to `recv` and removes it.
  void Deliver(Unexpected* message, Transfer* recv, Finished* finished) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Fails the group if a transfer waits for a rank that had left (one bit for each) before the last check.
  void FailIfAwaited(uint64_t left) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Fits(const Transfer& recv, int from, const Header& header) const;
  absl::Status Damaged(int rank) const;
  absl::Status TimedOut(const Operation& operation) const;
  void Finish(Transfer* transfer, absl::StatusOr<int> result, Finished* finished)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FinishAll(const absl::Status& status, Finished* finished) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

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
  const size_t credit_;  // CreditBytes()
  const SpinPolicy spin_policy_;
  WakeupWord& wakeup_;

  absl::Mutex mutex_;
  // The traffic with one other rank.
  struct Peer {
    std::deque<Frame> outgoing;               // in order
    std::map<uint64_t, Transfer*> announced;  // sends that wait for a grant, by id
    size_t unanswered = 0;                    // cost of messages sent and, as far as is known, not matched
    uint64_t space_seen = 0;                  // how far the peer has read
    Incoming incoming;
    std::map<uint64_t, Transfer*> granted;  // recvs that wait for the data of a granted message, by its id
    size_t held = 0;                        // cost of its messages that no recv has matched
    size_t taken = 0;                       // cost of matched messages of which the peer has not been told
  };
  // Returns the amount by which a message of `bytes` bytes changes `unanswered`, `held` and `taken`.
  static size_t Cost(size_t bytes);

  std::vector<Peer> peers_ ABSL_GUARDED_BY(mutex_);           // by rank
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;              // of an announced message
  size_t num_replies_ ABSL_GUARDED_BY(mutex_) = 0;            // frames without payload in all `outgoing`
  std::list<Transfer*> recvs_ ABSL_GUARDED_BY(mutex_);        // without a message, in order
  std::list<Unexpected> unexpected_ ABSL_GUARDED_BY(mutex_);  // in order of arrival
  std::set<Transfer*> started_ ABSL_GUARDED_BY(mutex_);       // all transfers that have a `done`
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::atomic<uint32_t> wake_count_{0};  // wakes the thread: a transfer was started, or the thread must stop
  std::thread thread_;                   // set under mutex_, joined by the destructor
};

}  // namespace tandem::collectives::shm

#endif  // TANDEM_COLLECTIVES_BACKENDS_SHM_POINT_TO_POINT_H_
