#ifndef TANDEM_RPC_TRANSPORT_RETRYING_CHANNEL_H_
#define TANDEM_RPC_TRANSPORT_RETRYING_CHANNEL_H_

// What every channel does, whatever carries its bytes: deadlines, retries of idempotent calls, cancellation
// when the channel goes. A transport only has to make single attempts.

#include <limits>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/bytes.h"
#include "rpc/channel.h"
#include "rpc/transport/retry.h"
#include "rpc/transport/timer_queue.h"

namespace tandem::rpc {

// One try at one call. Thread-safe.
class Attempt {
 public:
  virtual ~Attempt() = default;
  // Called once. `done` runs exactly once, within the attempt's deadline plus a little, on any thread;
  // possibly before Start returns.
  virtual void Start(Channel::Done done) = 0;
  // CallOptions::sink; called before Start, if at all. One that takes no notice gives all of an answer to
  // `done`.
  virtual void SetSink(std::shared_ptr<ResponseSink> sink) {}
  // Makes `done` run soon, with Cancelled unless the attempt ends otherwise first. Also before Start, and
  // after `done`.
  virtual void Cancel() = 0;
};

// Thread-safe. Outlives the `done` of all its attempts.
class Transport {
 public:
  virtual ~Transport() = default;
  // `method` and `request` stay as they are until the attempt's `done` has run. `failures` is how many
  // attempts at the same call failed with Unavailable before this one.
  virtual std::shared_ptr<Attempt> NewAttempt(const std::string& method, const Bytes& request,
                                              absl::Time deadline, int failures) = 0;
  // As Channel's.
  virtual absl::string_view name() const = 0;
  virtual std::shared_ptr<char> RequestMemory(size_t bytes) { return nullptr; }
  virtual void PrepareInlinePoll() {}
  virtual void InlinePoll(absl::FunctionRef<bool()> over, absl::Time deadline) {}
};

// `timers` is the channel's own; the transport may schedule on it until its last attempt is done. The two
// limits are those of ChannelOptions.
std::unique_ptr<Channel> MakeRetryingChannel(
    std::string target, std::unique_ptr<Transport> transport, std::unique_ptr<TimerQueue> timers,
    size_t max_message_bytes, const BackoffOptions& backoff = {},
    size_t max_outstanding_bytes = std::numeric_limits<size_t>::max());

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_TRANSPORT_RETRYING_CHANNEL_H_
