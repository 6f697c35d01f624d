// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_BACKENDS_TCP_POINT_TO_POINT_H_
#define TANDEM_COLLECTIVES_BACKENDS_TCP_POINT_TO_POINT_H_

// Tagged messages between two ranks, over the links that the collectives use too. A MessageMatcher decides
// where each message goes; small messages are eager. Each message contains its type and length, so a message
// that does not fit its receive is refused before its data is read.

#include <cstdint>
#include <functional>
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
#include "collectives/backend.h"
#include "collectives/backends/tcp/links.h"
#include "collectives/messages/message_matcher.h"

namespace tandem::collectives::tcp {

// Thread-safe.
class PointToPoint : private MessageMatcher::Transport {
 public:
  using Done = Backend::Done;
  static constexpr size_t kEagerBytes = 64 << 10;  // the largest message that is sent without a grant
  static constexpr size_t kCreditBytes = 1 << 20;  // of such messages that no receive has matched yet
  static constexpr size_t kSpareBytes = 16 << 20;  // of larger messages that are granted without a receive

  // Breaks the whole group (it closes the links and calls Fail) and returns the reason why the group is
  // broken. Called because `lost_rank` was lost or, for kAnySource, with `reason`. Runs on a thread of this
  // class or of the caller of Start.
  using GiveUp = std::function<absl::Status(int lost_rank, const absl::Status& reason)>;
  PointToPoint(const std::string& group, int rank, int world_size, GiveUp give_up);
  // Requires that Stop and Fail have been called.
  ~PointToPoint() override = default;

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
  struct Pending : MessageTransfer {
    using MessageTransfer::MessageTransfer;
    Done done;
    absl::Time deadline;
  };
  using Finished = std::vector<std::pair<Done, absl::StatusOr<int>>>;

  // MessageMatcher::Transport; the mutex is held.
  void Finish(MessageTransfer* transfer, absl::StatusOr<int> result) override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Answer(int to, uint64_t id, bool wanted) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReturnCredit(int to, uint64_t bytes) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Returns an error if the group has failed, or if a peer was lost without leaving, which breaks the group.
  absl::Status CheckPeers(const Operation& operation) ABSL_LOCKS_EXCLUDED(mutex_);
  // Begins a send. Returns false if there is nothing to give to the links: it has ended, or its peer is lost.
  bool BeginSend(Pending* send, Frame* frame, const void** data) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SendPayload(int peer, uint64_t id, const char* data, size_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  void Watch() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WatchLoop();

  const std::string group_;
  const int rank_;
  const int world_size_;
  const GiveUp give_up_;
  Links* links_ = nullptr;

  absl::Mutex mutex_;
  absl::Status failed_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<uint64_t, std::unique_ptr<Pending>> pending_ ABSL_GUARDED_BY(mutex_);  // by id, in order
  MessageMatcher matcher_ ABSL_GUARDED_BY(mutex_);
  struct Peer {
    bool lost = false, left = false;
    std::unique_ptr<char[]> dropped;  // where the data of a message go that no receive wants
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
