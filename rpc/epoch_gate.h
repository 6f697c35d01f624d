// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_EPOCH_GATE_H_
#define TANDEM_RPC_EPOCH_GATE_H_

// Decides which callers a server serves: those of its own epoch. Methods whose right needs the token of the
// server's key (NeedsToken) serve only callers that present it.
//
// The epoch protects a round from a process that the job has left behind: one that was cut off or stopped for
// too long, or that finds a different server at an old address. The token protects the job from processes
// that do not have its key (security/job_key.h).
//
//   caller                     server of a round       server that outlives rounds
//   of its epoch               served                  served
//   of an older epoch          FailedPrecondition      FailedPrecondition
//   of a newer epoch           Unavailable, retriable  served; this becomes the server's epoch
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
#include "rpc/service.h"

namespace tandem::rpc {

// Admits or refuses callers. Thread-safe. Shared by a server and the code that reports new epochs to it.
class EpochGate {
 public:
  enum class Kind {
    // Changes its epoch only in Enter.
    kSingleRound,
    // Adopts the newest epoch that any caller of its job has presented.
    kOutlivesRounds,
  };
  // `server` identifies the server. Epoch 0 means that it has none yet; callers of all epochs are then
  // served.
  explicit EpochGate(Caller server, Kind kind = Kind::kSingleRound)
      : server_(std::move(server)), kind_(kind), epoch_(server_.epoch) {}

  // Tells the gate that the server's process is in round `epoch`. An earlier epoch has no effect.
  void Enter(int64_t epoch);
  int64_t epoch() const { return epoch_.load(std::memory_order_acquire); }

  // Returns OK if `caller` is served. Errors: FailedPrecondition and Unavailable (see the table above), which
  // name the caller, the server and both epochs or jobs; InvalidArgument if the caller's identity could not
  // be parsed. Gated checks a call when its whole request has arrived. A call admitted before the epoch rose
  // is still executed.
  absl::Status Admit(const Caller& caller);

  // Returns OK if `caller` presents the token of the server. Otherwise PermissionDenied, which names `method`
  // ("tandem.v1.Failover/Attach"), `right`, both processes and the ids of their keys.
  absl::Status Authorize(const Caller& caller, absl::string_view method, Right right) const;

 private:
  const Caller server_;
  const Kind kind_;
  std::atomic<int64_t> epoch_;
};

// Returns `service` behind `gate`: Admit for each call, Authorize for methods that need a token. A refused
// call gets the gate's error and does not reach its handler.
Service Gated(Service service, std::shared_ptr<EpochGate> gate);

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_EPOCH_GATE_H_
