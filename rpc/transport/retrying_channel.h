// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_TRANSPORT_RETRYING_CHANNEL_H_
#define TANDEM_RPC_TRANSPORT_RETRYING_CHANNEL_H_

// Implements what every channel does, independent of the transport: deadlines, retries of idempotent calls,
// and cancellation when the channel is destroyed. A transport only makes single attempts.

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

// One attempt at one call. Thread-safe.
class Attempt {
 public:
  virtual ~Attempt() = default;
  // Starts the attempt; called once. `done` runs exactly once, soon after the attempt's deadline at the
  // latest, on any thread, possibly before Start returns.
  virtual void Start(Channel::Done done) = 0;
  // Sets CallOptions::sink. Called before Start, if at all. A transport that ignores it delivers the whole
  // response to `done`.
  virtual void SetSink(std::shared_ptr<ResponseSink> sink) {}
  // Makes `done` run soon, with Cancelled unless the attempt ends otherwise first. May be called before Start
  // and after `done`.
  virtual void Cancel() = 0;
};

// Carries the attempts of a channel. Thread-safe. Outlives the `done` of all its attempts.
class Transport {
 public:
  virtual ~Transport() = default;
  // Returns a new attempt. `method` and `request` stay unchanged until the attempt's `done` has run.
  // `failures` is the number of earlier attempts at the same call that failed with Unavailable.
  virtual std::shared_ptr<Attempt> NewAttempt(const std::string& method, const Bytes& request,
                                              absl::Time deadline, int failures) = 0;
  // These implement the functions of Channel with the same names; name() is Channel::transport().
  virtual absl::string_view name() const = 0;
  virtual std::shared_ptr<char> RequestMemory(size_t bytes) { return nullptr; }
  virtual void PrepareInlinePoll() {}
  virtual void InlinePoll(absl::FunctionRef<bool()> over, absl::Time deadline) {}
};

// Returns a channel to `target` over `transport`. The channel owns `timers`; the transport may schedule tasks
// on it until its last attempt is done. The two limits are those of ChannelOptions.
std::unique_ptr<Channel> MakeRetryingChannel(
    std::string target, std::unique_ptr<Transport> transport, std::unique_ptr<TimerQueue> timers,
    size_t max_message_bytes, const BackoffOptions& backoff = {},
    size_t max_outstanding_bytes = std::numeric_limits<size_t>::max());

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_TRANSPORT_RETRYING_CHANNEL_H_
