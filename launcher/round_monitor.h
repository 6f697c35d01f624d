// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_LAUNCHER_ROUND_MONITOR_H_
#define TANDEM_LAUNCHER_ROUND_MONITOR_H_

// Calls the rendezvous on threads of its own, because its calls may block on other machines, and turns their
// results into events that the launcher's main thread can poll for.

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/ipc/descriptor.h"
#include "cluster/membership/membership.h"
#include "cluster/rendezvous/rendezvous.h"

namespace tandem::launcher {

// One event for the main thread. A plain value.
struct AgentEvent {
  enum class Kind {
    kRound,         // `round` has begun, or `status` says why this node cannot join one
    kRoundOver,     // `event` has ended the round, or `status` says that this node is no longer part of it
    kNodes,         // nodes of the round became absent, or were replaced: `event`
    kTold,          // a call given to Tell has failed with `status`
    kJobState,      // the round's job has ended: `state` is what its members reported
    kPeerFailure,   // `process` reported that its peers do not respond: `status`
    kWorkersEnded,  // the workers of the other nodes have ended so: `outcomes`; or `status` is an error
    kMembers,       // the members of the round are `members`; or `status` is an error
  };
  Kind kind = Kind::kTold;
  absl::Status status;
  cluster::Round round;
  cluster::RendezvousEvent event;
  cluster::JobState state;
  std::string process;
  std::vector<std::string> outcomes;
  std::vector<cluster::MemberStatus> members;
  // kRound sets it to the members of the round if their store is in etcd, else to nullptr.
  std::shared_ptr<cluster::Membership> membership;
  // The round that the event is about: its epoch for kRoundOver, kNodes, kMembers and kJobState, the number
  // of the launcher's assignment for kPeerFailure.
  int64_t epoch = 0;
};

// Only the launcher's main thread may use it; Post is thread-safe. Owns two threads (one joins and waits, one
// runs the calls given to Tell) and further ones for memberships that are watched.
class RoundMonitor {
 public:
  // Returns the members of a round if its store is in etcd, else nullptr. Blocks until etcd has answered, for
  // some seconds; Unavailable then, and it is called again.
  using FindMembers =
      std::function<absl::StatusOr<std::shared_ptr<cluster::Membership>>(const cluster::Round& round)>;

  // `rendezvous` is borrowed. `prepare` runs on a thread of this before the first Join. After a Join that was
  // Unavailable it runs again, and Join is repeated. It may block until `stop` returns true. An error that it
  // returns becomes the kRound event's status.
  RoundMonitor(cluster::Rendezvous* rendezvous,
               std::function<absl::Status(const std::function<bool()>& stop)> prepare,
               FindMembers find_members = nullptr);
  // Blocks until all calls given to Tell have returned and memberships are not used any more, then leaves the
  // rendezvous.
  ~RoundMonitor();

  // A descriptor that is readable while there are events.
  int fd() const { return event_.get(); }
  // Returns and removes all events, in the order in which they came. Never blocks.
  std::vector<AgentEvent> Take();
  // Adds an event of another source. Thread-safe.
  void Post(AgentEvent news);

  // Starts joining the next round. A kRound event follows, and after one with a round, any number of kNodes
  // and then kRoundOver.
  void Join(const cluster::Node& node);
  // Queues `call` to run on the rendezvous after the calls queued before it. Only a failure gives an event.
  void Tell(std::function<absl::Status(cluster::Rendezvous&)> call);
  // Queues Rendezvous::Leave. A Join that is waiting ends, and no Join is repeated after that.
  void Leave();
  // Starts watching the membership of round `epoch`. A kJobState event follows when its job has ended. At
  // most one is watched at a time.
  void Watch(std::shared_ptr<cluster::Membership> membership, int64_t epoch);
  // Queues a look at the members of round `epoch`. A kMembers event follows.
  void Look(std::shared_ptr<cluster::Membership> membership, int64_t epoch);
  // Ends the watched membership's job for its members, unless it has ended already, and stops watching.
  // Blocks until that is done, which takes a moment; if etcd does not answer, it is done in the background
  // after a moment. No effect if nothing is watched.
  void Unwatch(bool failed, const std::string& reason);
  // Stops watching as Unwatch does, but members whose store outlives this process go on
  // (Membership::Abandon).
  void Abandon(bool failed, const std::string& reason);

 private:
  void Wait();     // body of the thread that joins rounds and waits for their end
  void Deliver();  // body of the thread that runs the calls given to Tell

  cluster::Rendezvous* const rendezvous_;
  const std::function<absl::Status(const std::function<bool()>& stop)> prepare_;
  const FindMembers find_members_;
  const ipc::Descriptor event_;
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool left_ ABSL_GUARDED_BY(mutex_) = false;
  bool waiter_ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<cluster::Node> to_join_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::function<absl::Status(cluster::Rendezvous&)>> to_tell_ ABSL_GUARDED_BY(mutex_);
  std::vector<AgentEvent> events_ ABSL_GUARDED_BY(mutex_);
  // One for each membership that was watched and may still be in use.
  struct Watcher {
    std::shared_ptr<cluster::Membership> membership;
    std::thread watching, ending;
    std::atomic<bool> ended = false;
  };
  static void JoinThreads(Watcher& watcher);
  // Calls `end` on the watched membership, and awaits the watching thread, as Unwatch says.
  void EndWatch(std::function<void(cluster::Membership&)> end);
  std::vector<std::unique_ptr<Watcher>> watchers_;
  bool watches_ = false;  // the last watcher
  std::thread waiter_, teller_;
};

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_ROUND_MONITOR_H_
