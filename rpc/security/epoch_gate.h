// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_SECURITY_EPOCH_GATE_H_
#define TANDEM_RPC_SECURITY_EPOCH_GATE_H_

// Decides which callers a server serves: those of its own epoch. Methods whose right needs a credential
// (NeedsToken) serve only callers that present the token of the server's key, or a grant that has the right.
//
// The epoch protects a round from a process that the job has left behind: one that was cut off or stopped for
// too long, or that finds a different server at an old address. The credential protects the job from
// processes that do not have its key (security/job_key.h, security/grant.h).
//
//   caller                     server of a round       server that outlives rounds
//   of its epoch               served                  served
//   of an older epoch          FailedPrecondition      FailedPrecondition
//   of a newer epoch           Unavailable, retriable  served; this becomes the server's epoch if the caller
//                                                      presents its token
//   of another job             FailedPrecondition      FailedPrecondition
//   of no job (a tool)         served                  served
//
// A server that has no epoch yet (0) serves the callers of its job in every epoch. Jobs are compared only if
// the caller and the server both have a run id.
//
// A server without a token (Caller::token is "") serves no method that needs one.
//
// A process that is restarted alone returns with the epoch of its round, so it is served. The service must
// tell its calls from those that its predecessor left unfinished (ps/server/push_fence.h).

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "rpc/caller.h"
#include "rpc/security/grant_checker.h"
#include "rpc/service.h"

namespace tandem::rpc {

// Admits or refuses callers. Thread-safe. Shared by a server and the code that reports new epochs to it.
class EpochGate {
 public:
  enum class Kind {
    // Changes its epoch only in Enter.
    kSingleRound,
    // Adopts the newest epoch that any member of its job has presented.
    kOutlivesRounds,
  };
  // `server` identifies the server. Epoch 0 means that it has none yet; callers of all epochs are then
  // served. It knows no grants.
  explicit EpochGate(Caller server, Kind kind = Kind::kSingleRound)
      : server_(std::move(server)), kind_(kind), epoch_(server_.epoch), grants_("") {}
  // The server has `key`, which `server` need not present, and knows the grants that were made with it.
  explicit EpochGate(const JobKey& key, Caller server, Kind kind = Kind::kSingleRound);

  EpochGate(const EpochGate&) = delete;

  // Tells the gate that the server's process is in round `epoch`. An earlier epoch has no effect.
  void Enter(int64_t epoch);
  int64_t epoch() const { return epoch_.load(std::memory_order_acquire); }

  // Returns OK if `caller` is served. Errors: FailedPrecondition and Unavailable (see the table above), which
  // name the caller, the server and both epochs or jobs; InvalidArgument if the caller's identity could not
  // be parsed. Gated checks a call when its whole request has arrived. A call admitted before the epoch rose
  // is still executed.
  absl::Status Admit(const Caller& caller);

  // Returns OK if `caller` presents the token of the server, or a grant that has the right. Otherwise
  // PermissionDenied, which names `method` ("tandem.v1.Failover/Attach"), `right`, both processes and the ids
  // of their keys; those of GrantChecker::Check.
  absl::Status Authorize(const Caller& caller, absl::string_view method, Right right);
  // Decides on `call` of `method` of a service, all of the above. Returns the call to serve, which knows its
  // caller's grant (ServerCall::grant) and counts what it uses; or nullptr if the call was refused, which has
  // finished then. Refusals and calls that need Right::kAdmin are recorded (security/audit_log.h).
  std::shared_ptr<ServerCall> AdmitCall(std::shared_ptr<ServerCall> call, absl::string_view method,
                                        Right right, Reach reach);
  // The grants of this server's callers.
  GrantChecker& grants() { return grants_; }

 private:
  const Caller server_;
  const Kind kind_;
  std::atomic<int64_t> epoch_;
  GrantChecker grants_;

  bool IsMember(const Caller& caller) const;
  absl::StatusOr<std::shared_ptr<GrantHolder>> HolderOf(const Caller& caller, absl::string_view method,
                                                        Right right);
};

// Returns `service` behind `gate`: EpochGate::AdmitCall for each call. A refused call gets the gate's error
// and does not reach its handler.
Service Gated(Service service, std::shared_ptr<EpochGate> gate);

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_SECURITY_EPOCH_GATE_H_
