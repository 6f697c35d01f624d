#ifndef TANDEM_RPC_CHANNEL_H_
#define TANDEM_RPC_CHANNEL_H_

// The client end of a connection to one server. Everything above rpc/ calls through this interface, so that
// gRPC, shared memory and an in-process loopback with injected faults are interchangeable.

#include <memory>
#include <stop_token>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/bytes.h"
#include "base/status.h"
#include "google/protobuf/message_lite.h"
#include "rpc/caller.h"
#include "rpc/wire/response_source.h"

namespace tandem::rpc {

struct CallOptions {
  // From the start of the call to its answer, retries included. DeadlineExceeded after that.
  absl::Duration timeout = absl::Seconds(30);
  // The server may see the call twice without harm: it is retried with backoff while it fails with
  // Unavailable and the timeout lasts. Calls not declared idempotent are sent once.
  bool idempotent = false;
  // When a stop is requested the call ends with Cancelled, wherever it is, and the server is told. The thread
  // that requests it may run `done`.
  std::stop_token cancel = {};
  // Is given a long answer piece by piece, where the transport can: `done` then gets no bytes. Else, and when
  // the answer is short, it is given nothing.
  std::shared_ptr<ResponseSink> sink = nullptr;
};

// Thread-safe. Destroying a channel cancels its outstanding calls (their `done` runs with Cancelled) and
// waits for them.
class Channel {
 public:
  using Done = absl::AnyInvocable<void(absl::StatusOr<Bytes>) &&>;
  virtual ~Channel() = default;

  // Starts a unary call. `method` is "/tandem.v1.ParameterServer/Pull". `done` runs exactly once, on an RPC
  // thread (or, for a call that cannot even start, in the caller): it must not block. Memory that `request`
  // refers to must stay unchanged until `done` has run. Errors: what the server returned; Unavailable (cannot
  // connect, connection lost); DeadlineExceeded; Cancelled; ResourceExhausted (a limit of ChannelOptions,
  // which the message names). Messages name the target and the method.
  virtual void CallAsync(absl::string_view method, Bytes request, const CallOptions& options, Done done) = 0;

  // Memory for `bytes` of a request that the transport can deliver without another copy, or nullptr when it
  // has none: then take memory of your own. Fill it, then hand it to CallAsync as a Slice whose owner is this
  // pointer. 64-byte aligned. Never blocks.
  virtual std::shared_ptr<char> RequestMemory(size_t bytes) { return nullptr; }

  // For a thread that is about to start calls and will then Help, as it must: spares the transport waking a
  // thread of its own for them.
  virtual void PrepareInlinePoll() {}

  // For a thread that waits for a call of this channel: receives on its behalf, if the transport can, which
  // spares a hand-over between threads. Returns when `over` says so, at `deadline`, or earlier for any
  // reason: then wait as you would. The `done` of any call may run in it: hold no lock that one takes.
  virtual void InlinePoll(absl::FunctionRef<bool()> over, absl::Time deadline) {}

  // What carries the bytes: "tcp", "unix", "shm" or "loopback", for reports.
  virtual absl::string_view transport() const = 0;

  // "host:port" (or "loopback"), for messages.
  virtual const std::string& target() const = 0;

  // Blocks until the answer, bounded by options.timeout. Never call it on an RPC thread.
  absl::StatusOr<Bytes> Call(absl::string_view method, Bytes request, const CallOptions& options);
};

// Serialises `request`, calls, parses the answer into a Response. Blocks like Channel::Call.
absl::Status CallProto(Channel& channel, absl::string_view method,
                       const google::protobuf::MessageLite& request, google::protobuf::MessageLite* response,
                       const CallOptions& options);

struct ChannelOptions {
  absl::Duration keepalive_time = absl::Seconds(20);     // a silent connection is probed this often
  absl::Duration keepalive_timeout = absl::Seconds(10);  // ... and given up after this
  size_t max_message_bytes = size_t{1} << 30;
  // Of requests whose calls are not over, which their senders keep in memory. A call that would pass it ends
  // with ResourceExhausted at once, unless it is the only one.
  size_t max_outstanding_bytes = size_t{1} << 30;
  // All calls share one stream, which spares most of a call's cost; false: each is a gRPC call of its own, as
  // they are with a server that does not know the stream.
  bool stream = true;
  // Who this process is, said to the server with each connection. One whose job has gone on, or that has not,
  // refuses its calls by name (rpc/epoch_gate.h). A process that moves to another round connects anew.
  Caller caller = {};
};

// A gRPC channel to "host:port" or "unix:/path". Connects lazily; returns at once. InvalidArgument for a
// malformed target, or a caller with too long a name.
absl::StatusOr<std::unique_ptr<Channel>> ConnectGrpc(const std::string& target,
                                                     const ChannelOptions& options = {});

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_CHANNEL_H_
