// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_TRANSPORT_LOOPBACK_H_
#define TANDEM_RPC_TRANSPORT_LOOPBACK_H_

// A channel to services in the same process, with injected faults. Used by tests and by programs that train
// in one process.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "rpc/channel.h"
#include "rpc/service.h"
#include "rpc/transport/retry.h"

namespace tandem::rpc {

class Transport;

// The fault injected into one attempt at a call.
struct Fault {
  enum class Kind {
    kNone,
    // The caller gets `status` and the handler does not run (connection refused).
    kFailBefore,
    // The handler runs, its response is lost and the caller gets `status` (connection lost).
    kFailAfter,
    // The handler runs and nothing comes back, so the caller's deadline passes.
    kNeverRespond,
    // The handler runs twice; one response is delivered.
    kDuplicate,
  };
  Kind kind = Kind::kNone;
  absl::Status status = absl::UnavailableError("injected fault");
};
// Decides the fault of each attempt, in call order. `call_index` numbers the attempts of this channel from 0;
// a retry is a new attempt. Called without locks, on the calling thread, or for a retry on the channel's own
// thread.
using FaultInjector = std::function<Fault(absl::string_view method, int64_t call_index)>;

// Returns a channel to `services`. Everything that their handlers capture must outlive the channel. Handlers
// and `done` run on a thread owned by the channel. Deadlines and retries of idempotent calls behave as over
// gRPC; `backoff` sets the waits between retries. `caller` is the caller that an EpochGate sees.
std::unique_ptr<Channel> ConnectLoopback(std::shared_ptr<const std::vector<Service>> services,
                                         FaultInjector injector = nullptr, const BackoffOptions& backoff = {},
                                         Caller caller = {});

// Returns the transport of such a channel, for channels that choose a server at each attempt. Handlers and
// the `done` of attempts run on a thread that the transport owns.
std::unique_ptr<Transport> MakeLoopbackTransport(std::shared_ptr<const std::vector<Service>> services,
                                                 FaultInjector injector = nullptr, Caller caller = {});

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_TRANSPORT_LOOPBACK_H_
