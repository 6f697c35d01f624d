// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_FAILOVER_REPLICA_IMPL_H_
#define TANDEM_PS_FAILOVER_REPLICA_IMPL_H_

// The parts of Replica. replica.cc has the loop and the actions of the protocol, replica_roles.cc what the
// roles do, replica_service.cc the calls of others.

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "base/logging.h"
#include "base/status.h"
#include "base/timed_wait.h"
#include "google/protobuf/message_lite.h"
#include "ps/failover/data_path.h"
#include "ps/failover/detector.h"
#include "ps/failover/protocol.h"
#include "ps/failover/replica.h"
#include "ps/failover/status_waits.h"
#include "ps/server/task_executor.h"
#include "rpc/port_probe.h"
#include "rpc/transport/timer_queue.h"

namespace tandem::ps {

inline constexpr absl::Duration kConnectTimeout = absl::Milliseconds(500);  // to see whether a port refuses
inline constexpr absl::Duration kWait = absl::Milliseconds(100);   // before the document is read again
inline constexpr absl::Duration kBoardTimeout = absl::Seconds(1);  // of one call to the board

// Starts a call whose response is of type Response. `done` runs on an RPC thread or in this call.
template <typename Response>
void CallAsync(rpc::Channel& channel, const char* method, const google::protobuf::MessageLite& request,
               absl::Duration timeout, std::function<void(absl::StatusOr<Response>)> done) {
  channel.CallAsync(method, Bytes(request.SerializeAsString()), {.timeout = timeout},
                    [done = std::move(done)](absl::StatusOr<Bytes> bytes) {
                      if (!bytes.ok()) return done(bytes.status());
                      Response response;
                      if (!response.ParseFromString(bytes->Flatten())) {
                        return done(absl::InternalError("the response does not parse"));
                      }
                      done(std::move(response));
                    });
}

// The loop's thread runs everything but the handlers, Status and Stop. Functions are of that thread unless
// they say otherwise. Callbacks hold weak references, since links and calls may end after the replica.
class Replica::Impl : public std::enable_shared_from_this<Replica::Impl> {
 public:
  explicit Impl(ReplicaOptions options);

  // These are those of Replica, and are called on any thread.
  rpc::Service MakeService();
  void Start(const std::string& address);
  v1::ReplicaStatus Status() const;
  absl::Status RemoveFollowers(absl::Duration timeout);
  void AllowFollowers();
  void BoardReset();
  absl::Status HandOver(const std::string& to, absl::Duration timeout);
  absl::Status Leave(absl::Duration timeout);
  bool left() const { return left_; }
  bool handed_over() const { return handed_over_; }
  void Stop();

 private:
  using Action = Protocol::Action;

  // Runs `body` on the loop's thread. May be called on any thread.
  void Post(std::function<void(Impl&)> body);
  // Returns a function that posts `body`, for callbacks. May be called on any thread.
  template <typename... Args, typename Body>
  std::function<void(Args...)> Posts(Body body) {
    return [weak = weak_from_this(), body = std::move(body)](Args... args) {
      const std::shared_ptr<Impl> self = weak.lock();
      if (self == nullptr) return;
      self->Post([body, args...](Impl& impl) { body(impl, args...); });
    };
  }
  void After(absl::Duration delay, std::function<void(Impl&)> body);

  // Calls an event of the protocol, and carries its actions out.
  template <typename Event>
  void Handle(Event event) {
    if (!protocol_.has_value() || !end_.ok()) return;
    Protocol::Actions actions;
    event(*protocol_, &actions);
    for (Action& action : actions) CarryOut(std::move(action));
    Publish();
  }
  void CarryOut(Action action);
  void Read();
  void CompareAndSet(uint64_t expected, const ShardPlacement& desired);
  void BeginCopy(const Copy& self, const ShardPlacement& placement);
  void Attached(const std::string& id, const absl::Status& status);
  void Watch(const std::string& id);
  void Watched(const std::string& id, const absl::StatusOr<v1::WatchResponse>& response);
  // The copy `id` could not apply what it was sent.
  void CopyFailed(const std::string& id, const absl::Status& why);
  void Probe(const ShardPlacement& placement);
  // The board has lost the document (replica_placement.cc).
  void AskCopies(const ShardPlacement& asked);
  // Notes whether the board had a document when it was read.
  void NoticePlacement();
  // Ends a process that has missed the document for too long.
  void GiveUpPlacement(absl::Time now);
  void ApplyReceived();
  void Lead(const ShardPlacement& placement);
  // Ends the time as the primary; the process goes on as a follower.
  void StepDown(const std::string& id);
  void StartLink(const Copy& copy, const Lineage& held);
  void EndLink(const std::string& id);
  void End(const absl::Status& status);
  LinkEvents Events();

  // A hand-over, at the primary (replica_handover.cc). It ends when its caller is gone, unless the follower
  // was asked already: then it goes on.
  using Gone = std::function<bool()>;  // returns whether the caller is gone; of the loop's thread
  static bool NeverGone() { return false; }
  static Gone GoneOf(const std::shared_ptr<rpc::ServerCall>& call) {
    return [call] { return call->IsCancelled(); };
  }
  struct PendingHandOver {
    uint64_t number = 0;
    std::string to;  // id or address of the follower; empty: any
    absl::Time began;
    absl::Time deadline;                           // until which a follower is looked for
    absl::Time held_since = absl::InfinitePast();  // no calls are answered
    bool stays = true;                             // this process goes on as a follower afterwards
    bool told = false;                             // the follower was asked to take over
    Gone caller_gone;
    std::function<void(absl::StatusOr<v1::HandOverResponse>)> done;
  };
  void StartHandOver(const std::string& to, bool stays, absl::Time deadline, Gone caller_gone,
                     std::function<void(absl::StatusOr<v1::HandOverResponse>)> done);
  void FailRemoval(const std::string& why);  // of followers
  // Looks for the follower until it is in sync and little behind, then begins.
  void ChooseFollower();
  std::optional<LinkState> FollowerFor(const std::string& to) const;
  void AwaitStored(const Copy& follower);
  void TellTakeOver(const Copy& follower, const ShardPlacement& placement);
  void HandOverFailed(absl::Status why);
  void EndHandOver(absl::StatusOr<v1::HandOverResponse> result);
  // Ends a hand-over whose caller is gone; returns whether it did.
  bool EndAbandoned();
  void StartLeave(const std::string& to, absl::Time deadline, Gone caller_gone,
                  std::function<void(absl::StatusOr<v1::LeaveResponse>)> done);
  // Answers once the document does not name the copy.
  void AwaitDetached(const std::string& id, absl::Time deadline, const rpc::Reply<v1::DetachResponse>& reply);
  // Answers the calls of TakeOver to this follower once it is decided who is the primary.
  void AnswerTakeOver();

  void Tick();
  // Ends the links to copies whose processes are dead.
  void ProbeLinks(absl::Time now);
  // Tells the log how long the takeover takes already.
  void WarnOfSlowTakeover(absl::Time now);
  // Tells the data path until when this primary may serve.
  void UpdateLease();
  void Publish();

  // Returns a channel to `address`, which stays valid until Forget or Stop.
  absl::StatusOr<rpc::Channel*> ChannelTo(const std::string& address);
  void Forget(const std::string& address);
  // Returns whether nobody listens at `address`. Blocks; of any thread.
  bool Refuses(const std::string& address) const {
    return options_.refuses ? options_.refuses(address) : ports_.Refuses(address, kConnectTimeout);
  }

  // Handlers of the service, of any thread.
  absl::Status CheckShard(const v1::AttachRequest& request) const;
  void HandleAttach(const std::shared_ptr<rpc::ServerCall>& call, const v1::AttachRequest& request,
                    rpc::Reply<v1::AttachResponse> reply);
  void HandleWatch(const std::shared_ptr<rpc::ServerCall>& call, const v1::WatchRequest& request,
                   const rpc::Reply<v1::WatchResponse>& reply);
  void HandleHandOver(const std::shared_ptr<rpc::ServerCall>& call, const v1::HandOverRequest& request,
                      rpc::Reply<v1::HandOverResponse> reply);
  void HandleTakeOver(const v1::TakeOverRequest& request, rpc::Reply<v1::TakeOverResponse> reply);
  void HandleLeave(const std::shared_ptr<rpc::ServerCall>& call, const v1::LeaveRequest& request,
                   rpc::Reply<v1::LeaveResponse> reply);
  void HandleDetach(const v1::DetachRequest& request, rpc::Reply<v1::DetachResponse> reply);
  void HandleGetPlacement(const std::shared_ptr<rpc::ServerCall>& call,
                          const v1::GetPlacementRequest& request, const rpc::Reply<v1::ReplicaStatus>& reply);

  const ReplicaOptions options_;
  const rpc::PortProbe ports_;
  DataPath& path_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> left_{false};
  std::atomic<bool> handed_over_{false};
  std::atomic<int64_t> primary_silent_ms_{0};
  StatusWaits waits_;

  // The loop's thread uses these.
  std::optional<Protocol> protocol_;  // after Start
  Detector detector_;
  std::map<std::string, std::unique_ptr<rpc::Channel>> channels_;  // by address
  std::set<std::string> linked_;
  bool promoted_ = false;
  int failed_copies_ = 0;                     // in a row
  std::string failed_copy_;                   // id of the copy that is made anew after a pause
  bool attached_ = false;                     // the primary serves the present copy
  std::map<std::string, absl::Time> probed_;  // when a quiet link was last asked for, by id of the copy
  absl::Time takeover_began_ = absl::InfinitePast();
  absl::Duration takeover_;
  std::optional<PendingHandOver> hand_over_;
  uint64_t hand_overs_ = 0;                     // that were asked for
  absl::Time asked_at_ = absl::InfinitePast();  // since when calls wait for this copy, asked to take over
  absl::Duration handover_pause_;               // of the hand-over by which it became primary
  std::vector<rpc::Reply<v1::TakeOverResponse>> take_over_replies_;
  absl::Time leave_asked_ = absl::InfinitePast();       // when this copy, a primary, was last asked to leave
  bool detaching_ = false;                              // the primary was asked to end the link to this copy
  absl::Time unlinked_since_ = absl::InfiniteFuture();  // the primary has no link to this copy
  absl::Time takeover_warned_ = absl::InfinitePast();
  absl::Time nobody_since_ = absl::InfiniteFuture();        // no copy of the document answers, see Probe
  absl::Time no_placement_since_ = absl::InfiniteFuture();  // the board has no document, see NoticePlacement
  std::string waits_for_;                                   // why there is none yet
  std::atomic<bool> board_reset_ = false;                   // BoardReset was called
  std::string board_error_;
  std::string refusal_;
  absl::Status end_;

  absl::Mutex removal_mutex_;
  std::function<void(const absl::Status&)> removed_ ABSL_GUARDED_BY(removal_mutex_);

  TaskExecutor board_calls_{1};
  TaskExecutor probes_{1};  // connects to see who listens
  rpc::TimerQueue loop_;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_FAILOVER_REPLICA_IMPL_H_
