// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_BACKENDS_TCP_POINT_TO_POINT_H_
#define TANDEM_COLLECTIVES_BACKENDS_TCP_POINT_TO_POINT_H_

// Tagged messages between two ranks, over the links that the collectives use too.
//
// A small message travels with its data and waits at the receiver until a receive matches it: at most
// kCreditBytes of such messages from each sender. A large message, or one beyond that limit, is only
// announced. Its data follow, directly into place, when a receive has been matched to it. Each message
// contains its type and length, so a message that does not fit its receive is refused before its data is
// read.

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "collectives/backend.h"
#include "collectives/backends/tcp/links.h"

namespace tandem::collectives::tcp {

// Thread-safe.
class PointToPoint {
 public:
  using Done = Backend::Done;
  static constexpr size_t kEagerBytes = 64 << 10;  // the largest message that is sent without a grant
  static constexpr size_t kCreditBytes = 1 << 20;  // of such messages that no receive has matched yet

  // Breaks the whole group (it closes the links and calls Fail) and returns the reason why the group is
  // broken. Called because `lost_rank` was lost or, for kAnySource, with `reason`. Runs on a thread of this
  // class or of the caller of Start.
  using GiveUp = std::function<absl::Status(int lost_rank, const absl::Status& reason)>;
  PointToPoint(const std::string& group, int rank, int world_size, GiveUp give_up);
  // Requires that Stop and Fail have been called.
  ~PointToPoint() = default;

  // Ends the watch over deadlines and lost ranks; afterwards this object no longer calls `give_up` by itself.
  void Stop();

  // Must be called before the first operation.
  void SetLinks(Links* links) { links_ = links; }

  // Behaves as Backend::StartPointToPoint.
  void Start(const Operation& operation, Done done);

  // Ends pending and later operations. Requires that the links are closed: no memory is used any more.
  void Fail(const absl::Status& reason);

  absl::StatusOr<char*> FrameBegins(int peer, const Frame& frame);
  void FrameEnds(int peer, const Frame& frame);
  void FrameSent(int peer, const Frame& frame);
  // `left`: the peer had announced that it leaves.
  void LinkLost(int peer, bool left);
  // Runs the callbacks of finished operations.
  void TurnEnds();

 private:
  struct Pending {
    uint64_t id = 0;
    Operation operation;
    Done done;
    absl::Time deadline;
    size_t moved = 0;       // bytes sent or received
    int peer = kAnySource;  // receives: the sender, once known
  };
  // A message that no receive has matched.
  struct Message {
    int source;
    Frame frame;                    // kEager or kRequest
    std::unique_ptr<char[]> bytes;  // of kEager
    bool complete = false;
    absl::optional<Pending> receive;  // gets the message when it is complete
  };
  using Finished = std::vector<std::pair<Done, absl::StatusOr<int>>>;

  void StartSend(Pending pending);
  void StartReceive(Pending pending);
  // Returns an error if the group has failed, or if a peer was lost without leaving, which breaks the group.
  absl::Status CheckPeers(const Operation& operation) ABSL_LOCKS_EXCLUDED(mutex_);
  static bool Matches(const Operation& receive, int source, const Frame& frame);
  static absl::Status CheckFits(const Operation& receive, int source, const Frame& frame);
  absl::optional<Pending> TakePosted(int source, const Frame& frame) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Builds the grant of a request; `receive` gets its data, or an error.
  Frame Grant(int source, const Frame& request, Pending receive) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Gives an arrived message to its receive.
  void Deliver(Message* message, Pending receive) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Records that an eager message was taken, so that its sender may send more, and queues a credit frame if
  // it is due.
  void Taken(int source, const Frame& frame) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Finish(Pending pending, absl::StatusOr<int> result) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SendPayload(int peer, uint64_t send_id, uint64_t receive_id);
  void AddSent(uint64_t id, size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Watch() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WatchLoop();
  template <typename Body>
  void ForEachPending(Body body) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string group_;
  const int rank_;
  const int world_size_;
  const GiveUp give_up_;
  Links* links_ = nullptr;

  absl::Mutex mutex_;
  absl::Status failed_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  std::list<Pending> posted_ ABSL_GUARDED_BY(mutex_);              // receives without a message, in order
  std::map<uint64_t, Pending> receiving_ ABSL_GUARDED_BY(mutex_);  // granted
  std::map<uint64_t, Pending> sending_ ABSL_GUARDED_BY(mutex_);
  std::list<Message> unexpected_ ABSL_GUARDED_BY(mutex_);  // in order of arrival
  struct Peer {
    bool lost = false, left = false;
    size_t unanswered = 0;  // cost of eager messages sent and not yet taken
    size_t taken = 0;       // cost of eager messages taken and not yet reported
    // The eager message that is being read: into `message`, into `direct`, or dropped.
    Message* message = nullptr;
    absl::optional<Pending> direct;  // the payload goes directly into this receive
    std::unique_ptr<char[]> dropped;
  };
  std::vector<Peer> peers_ ABSL_GUARDED_BY(mutex_);                       // by rank
  std::vector<std::pair<int, Frame>> responses_ ABSL_GUARDED_BY(mutex_);  // frames to send without payload
  Finished finished_ ABSL_GUARDED_BY(mutex_);

  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool watching_ ABSL_GUARDED_BY(mutex_) = false;
  absl::CondVar changed_;
  std::thread watcher_;  // ends operations at their deadlines; started by the first one that has to wait
};

}  // namespace tandem::collectives::tcp

#endif  // TANDEM_COLLECTIVES_BACKENDS_TCP_POINT_TO_POINT_H_
