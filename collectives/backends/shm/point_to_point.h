// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_BACKENDS_SHM_POINT_TO_POINT_H_
#define TANDEM_COLLECTIVES_BACKENDS_SHM_POINT_TO_POINT_H_

// Messages between two ranks, through a ring of bytes for each ordered pair. A message is a header and its
// payload. The payload is streamed, so a message may be larger than the ring.
//
// Any thread that waits moves the data of all transfers of this rank. A thread of this object does so for
// transfers for which no thread waits; the first such transfer starts it.
//
// A message that no recv matches yet is kept in this process's memory, up to kMostUnexpectedBytes. A message
// that does not fit stays in its ring and delays later messages of its sender.

#include <atomic>
#include <deque>
#include <list>
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
    bool begun = false;  // send: the header is in the ring; recv: a message was found for it
    std::atomic<bool> finished{false};
    absl::StatusOr<int> result = 0;
  };
  // Precedes the payload of a message in its ring.
  struct Header {
    uint32_t magic;
    uint32_t tag;
    uint64_t bytes;
    uint8_t dtype;
    uint8_t unused[15];
  };
  static_assert(sizeof(Header) == 32);
  // A message that arrived before its recv.
  struct Unexpected {
    int source;
    Header header;
    std::unique_ptr<char[]> data;
    bool complete = false;
    Transfer* claimed_by = nullptr;  // gets the message when it is complete
  };
  // The message that is being read from a rank's ring.
  struct Incoming {
    bool begun = false;   // the header has been read
    bool placed = false;  // the destination is known: `recv`, `unexpected`, or none (the payload is dropped)
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
  // Decides the destination of the message that has begun; returns false if the message has to wait in the
  // ring.
  bool ChooseDestination(int from, Incoming& incoming, Finished* finished)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
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
  const SpinPolicy spin_policy_;
  WakeupWord& wakeup_;

  absl::Mutex mutex_;
  std::vector<std::deque<Transfer*>> sends_ ABSL_GUARDED_BY(mutex_);  // by receiver, in order
  std::list<Transfer*> recvs_ ABSL_GUARDED_BY(mutex_);                // without a message, in order
  std::vector<Incoming> incoming_ ABSL_GUARDED_BY(mutex_);            // by sender
  std::list<Unexpected> unexpected_ ABSL_GUARDED_BY(mutex_);          // in order of arrival
  size_t unexpected_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::set<Transfer*> started_ ABSL_GUARDED_BY(mutex_);       // all transfers that have a `done`
  std::vector<uint64_t> space_seen_ ABSL_GUARDED_BY(mutex_);  // by receiver: how far it has read
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::atomic<uint32_t> wake_count_{0};  // wakes the thread: a transfer was started, or the thread must stop
  std::thread thread_;                   // set under mutex_, joined by the destructor
};

}  // namespace tandem::collectives::shm

#endif  // TANDEM_COLLECTIVES_BACKENDS_SHM_POINT_TO_POINT_H_
