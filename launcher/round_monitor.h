#ifndef TANDEM_LAUNCHER_ROUND_MONITOR_H_
#define TANDEM_LAUNCHER_ROUND_MONITOR_H_

// The launcher's line to its rendezvous: calls that may wait for other machines run on threads, and what
// comes of them is something to poll for.

#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/ipc/descriptor.h"
#include "collectives/membership/membership.h"
#include "collectives/rendezvous/rendezvous.h"

namespace tandem::launcher {

// What has happened. A plain value.
struct AgentEvent {
  enum class Kind {
    kRound,        // `round` begins, or `status` says why none does
    kRoundOver,    // `event` has ended it, or `status` says that this node has lost it
    kTold,         // a Tell has failed with `status`
    kJobState,     // `state`: what the members of the round's job say
    kPeerFailure,  // a process says that its peers do not answer: `process`, `status`
  };
  Kind kind = Kind::kTold;
  absl::Status status;
  collectives::Round round;
  collectives::RendezvousEvent event;
  collectives::JobState state;
  std::string process;
  int64_t epoch = 0;  // of kRoundOver and kJobState: the round that it is about
};

// Used by the main thread. Owns two threads, and one for each membership that is watched.
class RoundMonitor {
 public:
  // `prepare` runs on a thread before the first Join, and again after one that was Unavailable, which is then
  // repeated. It may wait as long as its argument is false; its error is the round's.
  RoundMonitor(collectives::Rendezvous* rendezvous,
               std::function<absl::Status(const std::function<bool()>& stop)> prepare);
  // Waits for what was told to be delivered or given up, and leaves.
  ~RoundMonitor();

  // Readable when there is news.
  int fd() const { return event_.get(); }
  std::vector<AgentEvent> Take();
  // Adds news of another source; any thread may.
  void Post(AgentEvent news);

  // Joins the next round: kRound will come, then kRoundOver.
  void Join(const collectives::Node& node);
  // Runs `call` on the rendezvous, after those told before.
  void Tell(std::function<absl::Status(collectives::Rendezvous&)> call);
  // Tells the rendezvous Leave. A Join that waits ends, and none is repeated.
  void Leave();
  // kJobState will come when the job of round `epoch` has ended. `membership` must outlive this or Unwatch.
  void Watch(collectives::Membership* membership, int64_t epoch);
  // Ends the watched membership's job for its members, if it has not ended; blocks for a moment.
  void Unwatch(bool failed, const std::string& reason);

 private:
  void Wait();     // the thread that joins and waits for events
  void Deliver();  // the thread that tells

  collectives::Rendezvous* const rendezvous_;
  const std::function<absl::Status(const std::function<bool()>& stop)> prepare_;
  const ipc::Descriptor event_;
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool left_ ABSL_GUARDED_BY(mutex_) = false;
  bool waiter_ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<collectives::Node> to_join_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::function<absl::Status(collectives::Rendezvous&)>> to_tell_ ABSL_GUARDED_BY(mutex_);
  std::vector<AgentEvent> events_ ABSL_GUARDED_BY(mutex_);
  collectives::Membership* membership_ = nullptr;
  std::thread waiter_, teller_, member_watcher_;
};

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_ROUND_MONITOR_H_
