#ifndef TANDEM_RPC_SERVICE_H_
#define TANDEM_RPC_SERVICE_H_

// What a server offers, independent of transport: named methods from bytes to bytes. The same Service object
// is served over gRPC (rpc/server.h) and called in-process (rpc/transport/loopback.h).

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/bytes.h"
#include "google/protobuf/message_lite.h"
#include "rpc/caller.h"
#include "rpc/wire/response_source.h"

namespace tandem::rpc {

// One incoming call. A handler keeps the shared_ptr as long as it needs (a waiting pull is parked, not a
// blocked thread) and calls Finish exactly once, from any thread. A call dropped without Finish is answered
// with Internal.
class ServerCall {
 public:
  virtual ~ServerCall() = default;
  virtual const Bytes& request() const = 0;
  virtual const std::string& peer() const = 0;  // "ipv4:127.0.0.1:4711", for messages
  virtual const Caller& caller() const;     // what the channel says of its process; nothing unless it does
  virtual absl::Time deadline() const = 0;  // InfiniteFuture when the caller set none
  virtual bool IsCancelled() const = 0;     // the caller went away or its deadline passed
  virtual void Finish(absl::StatusOr<Bytes> response) = 0;
  // The same with an answer that is made while it is sent, where the transport can: then there is never more
  // of it in memory than is on its way. Elsewhere it is made here.
  virtual void FinishInChunks(std::unique_ptr<ResponseSource> answer);
  // Runs `hook` once the caller has cancelled the call or is gone: at once if that was so before, never after
  // Finish. Its deadline alone is for the handler to watch. Runs on an RPC thread, or on the canceller's: it
  // must not block. To be called once; the hook must not own the call.
  virtual void OnCancel(absl::AnyInvocable<void() &&> hook) {}
  // Memory for `bytes` of the answer that the transport can deliver without another copy (shared memory that
  // the caller reads in place), or nullptr when it has none: then take memory of your own. Fill it, then hand
  // it to Finish as a Slice whose owner is this pointer. 64-byte aligned.
  virtual std::shared_ptr<char> ResponseMemory(size_t bytes) { return nullptr; }
};

using Handler = std::function<void(std::shared_ptr<ServerCall>)>;

struct Method {
  std::string name;  // "Pull"
  Handler handler;   // runs on an RPC thread: must not block
};

struct Service {
  std::string name;  // "tandem.v1.ParameterServer"
  std::vector<Method> methods;
};

// A handler for an ordinary protobuf method that computes its answer without blocking: parses the request
// (InvalidArgument when it does not parse), calls `body`, serialises the response.
template <typename Request, typename Response>
Handler ProtoHandler(std::function<absl::StatusOr<Response>(const Request&)> body);

// The same for a body that answers later or blocks elsewhere: it gets the parsed request and a `reply` to
// call once.
template <typename Response>
using Reply = std::function<void(absl::StatusOr<Response>)>;
template <typename Request, typename Response>
Handler AsyncProtoHandler(std::function<void(std::shared_ptr<ServerCall>, Request, Reply<Response>)> body);

namespace internal {
absl::Status ParseRequest(const ServerCall& call, google::protobuf::MessageLite* request);
Bytes SerializeResponse(const google::protobuf::MessageLite& response);
}  // namespace internal

template <typename Request, typename Response>
Handler ProtoHandler(std::function<absl::StatusOr<Response>(const Request&)> body) {
  return [body = std::move(body)](std::shared_ptr<ServerCall> call) {
    Request request;
    if (absl::Status parsed = internal::ParseRequest(*call, &request); !parsed.ok()) {
      call->Finish(parsed);
      return;
    }
    absl::StatusOr<Response> response = body(request);
    if (!response.ok()) {
      call->Finish(response.status());
    } else {
      call->Finish(internal::SerializeResponse(*response));
    }
  };
}

template <typename Request, typename Response>
Handler AsyncProtoHandler(std::function<void(std::shared_ptr<ServerCall>, Request, Reply<Response>)> body) {
  return [body = std::move(body)](std::shared_ptr<ServerCall> call) {
    Request request;
    if (absl::Status parsed = internal::ParseRequest(*call, &request); !parsed.ok()) {
      call->Finish(parsed);
      return;
    }
    body(call, std::move(request), [call](absl::StatusOr<Response> response) {
      if (!response.ok()) {
        call->Finish(response.status());
      } else {
        call->Finish(internal::SerializeResponse(*response));
      }
    });
  };
}

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_SERVICE_H_
