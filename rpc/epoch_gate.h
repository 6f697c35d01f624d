#ifndef TANDEM_RPC_EPOCH_GATE_H_
#define TANDEM_RPC_EPOCH_GATE_H_

// Whom a server of a job serves: callers of its own epoch, so that a process which the job has gone on
// without (cut off, stopped for too long, or one that finds another server at an address it knows) does no
// harm in the next round.
//
//   caller                     server of a round       server that outlives rounds
//   of its epoch               served                  served
//   of an older epoch          FailedPrecondition      FailedPrecondition
//   of a newer one             Unavailable, retriable  served; from then on that is the server's epoch
//   of another job             FailedPrecondition      FailedPrecondition
//   of none (a tool)           served                  served
//
// A process that is started again alone comes back with the epoch of its round, so it is served; what its
// older self left under way is its service's to tell apart (ps/server/push_fence.h).

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "rpc/caller.h"
#include "rpc/service.h"

namespace tandem::rpc {

// Thread-safe. Shared by a server and whoever tells it of new epochs.
class EpochGate {
 public:
  enum class Kind {
    kOfARound,        // changes its epoch by Enter only
    kOutlivesRounds,  // takes the newest epoch that a caller of its job has shown
  };
  // `server`: what it says of itself. Epoch 0: it has none yet; everyone is served until it has.
  explicit EpochGate(Caller server, Kind kind = Kind::kOfARound)
      : server_(std::move(server)), kind_(kind), epoch_(server_.epoch) {}

  // The server's process is in a later round now; an earlier one changes nothing.
  void Enter(int64_t epoch);
  int64_t epoch() const { return epoch_.load(std::memory_order_acquire); }

  // Whether `caller` is served. Errors name it, the server and both epochs or jobs: FailedPrecondition,
  // Unavailable (the table above), InvalidArgument (what it says of itself is not understood). A call is
  // judged when it has come whole: one that was let in before the epoch rose is of the time before.
  absl::Status Admit(const Caller& caller);

 private:
  const Caller server_;
  const Kind kind_;
  std::atomic<int64_t> epoch_;
};

// The same service behind `gate`: calls that it refuses are answered so, and the handlers do not see them.
Service Gated(Service service, std::shared_ptr<EpochGate> gate);

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_EPOCH_GATE_H_
