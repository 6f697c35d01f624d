#ifndef TANDEM_RPC_TRANSPORT_LOOPBACK_H_
#define TANDEM_RPC_TRANSPORT_LOOPBACK_H_

// A channel to services of the same process, with faults on demand: the second implementation of Channel,
// used by tests and by programs that train in one process.

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

// What happens to one call. Decided per call by the injector, in call order.
struct Fault {
  enum class Kind {
    kNone,
    kFailBefore,   // the caller gets `status`; the handler never runs (connection refused)
    kFailAfter,    // the handler runs, its answer is lost, the caller gets `status` (connection lost)
    kNeverRespond,  // the handler runs, nothing comes back: the caller meets its deadline
    kDuplicate,    // the handler runs twice, one answer is delivered
  };
  Kind kind = Kind::kNone;
  absl::Status status = absl::UnavailableError("injected fault");
};
// `call_index` counts this channel's attempts from 0 (a retry is a new attempt). Called under no lock, from
// the thread that calls, for a retry from the channel's own.
using FaultInjector = std::function<Fault(absl::string_view method, int64_t call_index)>;

// The services are shared: what their handlers capture must outlive the channel. Answers are delivered on a
// thread of the channel's own, as gRPC would. Deadlines and idempotent retries behave as over gRPC; retries
// wait as `backoff` says. `caller` is who calls, for services behind an EpochGate.
std::unique_ptr<Channel> ConnectLoopback(std::shared_ptr<const std::vector<Service>> services,
                                         FaultInjector injector = nullptr, const BackoffOptions& backoff = {},
                                         Caller caller = {});

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_TRANSPORT_LOOPBACK_H_
