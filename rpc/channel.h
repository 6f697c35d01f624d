// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_CHANNEL_H_
#define TANDEM_RPC_CHANNEL_H_

// Defines Channel, the client end of a connection to one server. All code outside rpc/ calls servers through
// this interface, so gRPC, shared memory and an in-process loopback with injected faults are interchangeable.

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

class JobKey;

// The options of one call.
struct CallOptions {
  // Largest time from the start of the call to its response, retries included. After it the call fails with
  // DeadlineExceeded.
  absl::Duration timeout = absl::Seconds(30);
  // True if the server may receive the call twice without harm. The call is then retried with backoff while
  // it fails with Unavailable and the timeout has not passed. Other calls are sent once.
  bool idempotent = false;
  // When a stop is requested, the call ends with Cancelled, whatever its state, and the server is told. The
  // thread that requests the stop may run `done`.
  std::stop_token cancel = {};
  // If the transport supports it, a long response is delivered to this sink chunk by chunk, and `done` then
  // gets no bytes. With other transports, and for short responses, the sink is not used.
  std::shared_ptr<ResponseSink> sink = nullptr;
};

// A connection to one server. Thread-safe. The destructor cancels the outstanding calls (their `done` runs
// with Cancelled) and waits for them.
class Channel {
 public:
  using Done = absl::AnyInvocable<void(absl::StatusOr<Bytes>) &&>;
  virtual ~Channel() = default;

  // Starts a unary call. `method` has the form "/tandem.v1.ParameterServer/Pull". `done` runs exactly once,
  // on an RPC thread, or in this call if the call cannot even start. `done` must not block. Memory that
  // `request` refers to must stay unchanged until `done` has run. Messages of errors name the target and the
  // method. Errors:
  //
  // - the error that the server returned
  // - Unavailable: cannot connect, or the connection was lost
  // - DeadlineExceeded: options.timeout passed
  // - Cancelled: options.cancel was used, or the channel was destroyed
  // - ResourceExhausted: a limit of ChannelOptions, which the message names, was exceeded
  virtual void CallAsync(absl::string_view method, Bytes request, const CallOptions& options, Done done) = 0;

  // Returns memory for `bytes` bytes of a request that the transport can deliver without another copy.
  // Returns nullptr if it has none; the caller then allocates its own. Fill the memory, then pass it to
  // CallAsync as a Slice whose owner is this pointer. 64-byte aligned. Never blocks.
  virtual std::shared_ptr<char> RequestMemory(size_t bytes) { return nullptr; }

  // Announces that this thread is about to start calls and will then call InlinePoll, which it must do. The
  // transport then need not wake a thread of its own for these calls.
  virtual void PrepareInlinePoll() {}

  // Receives on behalf of this thread, which waits for a call of this channel, if the transport supports
  // that. This saves a hand-over between threads. Returns when `over` returns true, at `deadline`, or earlier
  // for any reason; the caller must then wait by its usual means. The `done` of any call may run inside, so
  // the thread must hold no lock that a `done` acquires.
  virtual void InlinePoll(absl::FunctionRef<bool()> over, absl::Time deadline) {}

  // Returns the transport in use, for reports: "tcp", "unix", "shm" or "loopback".
  virtual absl::string_view transport() const = 0;

  // Returns the server's address, for messages: "host:port", "unix:/path" or "loopback".
  virtual const std::string& target() const = 0;

  // Starts a call and blocks until its response arrives, at most options.timeout. Must not be called on an
  // RPC thread. Errors: those of CallAsync.
  absl::StatusOr<Bytes> Call(absl::string_view method, Bytes request, const CallOptions& options);
};

// Serialises `request`, calls the method and parses the response into `*response`. Blocks like Channel::Call.
// Errors: those of Channel::Call, and Internal if the response does not parse.
absl::Status CallProto(Channel& channel, absl::string_view method,
                       const google::protobuf::MessageLite& request, google::protobuf::MessageLite* response,
                       const CallOptions& options);

// The options of a channel, valid for all its calls.
struct ChannelOptions {
  // An idle connection is probed this often.
  absl::Duration keepalive_time = absl::Seconds(20);
  // A connection whose probe is not answered within this time is closed.
  absl::Duration keepalive_timeout = absl::Seconds(10);
  // Largest size of one request or response.
  size_t max_message_bytes = size_t{1} << 30;
  // Limits the total size of the requests of unfinished calls, which the client keeps in memory. A call that
  // would exceed it fails with ResourceExhausted at once, unless it is the only unfinished call.
  size_t max_outstanding_bytes = size_t{1} << 30;
  // True: all calls share one stream, which avoids most of a call's cost. False: each call is a gRPC call of
  // its own. Calls to a server that does not support the stream are always sent that way.
  bool stream = true;
  // Names a connection: channels of this process to the same target that have the same name and the same
  // options, except `caller`, use one. "": a connection of its own.
  std::string connection = {};
  // Identifies this process to the server, once per connection. A server of another job or epoch
  // refuses the calls, and its error names both (rpc/security/epoch_gate.h). A process that joins another
  // round must open new channels.
  Caller caller = {};
  // Secures a TCP connection, and gives the caller's token unless it has one
  // (rpc/security/transport_security.h). nullptr: the key or the grant of this process. The server must have
  // the same key.
  std::shared_ptr<const JobKey> key = nullptr;
};

// Returns a gRPC channel to "host:port" or "unix:/path". Returns at once and connects lazily. InvalidArgument
// if the target is malformed, or if CheckCaller refuses options.caller; errors of
// ProcessCredential.
absl::StatusOr<std::unique_ptr<Channel>> ConnectGrpc(const std::string& target,
                                                     const ChannelOptions& options = {});

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_CHANNEL_H_
