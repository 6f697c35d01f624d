// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_SERVICE_H_
#define TANDEM_RPC_SERVICE_H_

// Defines what a server offers, independent of the transport: named methods that map bytes to bytes. The same
// Service object is served over gRPC and shared memory (rpc/server.h) and called in-process
// (rpc/transport/loopback.h).

#include <functional>
#include <memory>
#include <string>
#include <utility>
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

struct GrantClaims;

// One incoming call. The handler keeps the shared_ptr as long as it needs it and calls Finish (or
// FinishInChunks) exactly once, from any thread. A call that has to wait is stored, it does not block a
// thread. A call dropped without Finish fails with Internal.
class ServerCall {
 public:
  virtual ~ServerCall() = default;
  virtual const Bytes& request() const = 0;
  // Returns the client's address, for messages: "ipv4:127.0.0.1:4711".
  virtual const std::string& peer() const = 0;
  // Returns how the client's process identified itself (ChannelOptions::caller), or an empty Caller.
  virtual const Caller& caller() const;
  // Returns what the caller's grant allows, or nullptr if the caller is a member of the job, or if nobody has
  // looked (EpochGate). A handler that is open to grants with patterns of tables (Method::reach) must
  // call CheckTable for each table or model that a request names.
  const GrantClaims* grant() const { return grant_.get(); }
  void SetGrant(std::shared_ptr<const GrantClaims> grant) { grant_ = std::move(grant); }
  // Returns PermissionDenied if the caller's grant does not cover the table or model.
  absl::Status CheckTable(absl::string_view table) const;
  // Returns the call's deadline, InfiniteFuture if the client set none.
  virtual absl::Time deadline() const = 0;
  // Returns true if the client cancelled the call, is gone, or the deadline has passed.
  virtual bool IsCancelled() const = 0;
  // Sends the response, or the error.
  virtual void Finish(absl::StatusOr<Bytes> response) = 0;
  // Like Finish, but produces the response while it is sent, if the transport supports that. Then only the
  // part that is being sent is in memory. With other transports the whole response is produced in this call.
  virtual void FinishInChunks(std::unique_ptr<ResponseSource> answer);
  // Runs `hook` when the client cancels the call or is gone, or at once if that has already happened. `hook`
  // never runs after Finish, and not when only the deadline passes: handlers watch the deadline themselves.
  // `hook` runs on an RPC thread, or on the thread that cancels, and must not block. May be called at most
  // once. `hook` must not own the call.
  virtual void OnCancel(absl::AnyInvocable<void() &&> hook) {}
  // Returns memory for `bytes` bytes of the response that the transport can deliver without another copy,
  // such as shared memory which the client reads in place. Returns nullptr if it has none; the handler then
  // allocates its own. Fill the memory, then pass it to Finish as a Slice whose owner is this pointer.
  // 64-byte aligned.
  virtual std::shared_ptr<char> ResponseMemory(size_t bytes) { return nullptr; }

 private:
  std::shared_ptr<const GrantClaims> grant_;
};

using Handler = std::function<void(std::shared_ptr<ServerCall>)>;

// A method states the right that its callers need. EpochGate checks it: who presents the token of the
// server's key may do everything, who presents a grant what its role may do, and everyone else may observe.
enum class Right {
  kObserve,  // looks at states and figures
  kRead,     // reads the job's data: rows, weights, items, keys
  kTrain,    // changes the data as training does
  kAct,      // computes actions, adds experience
  kMember,   // joins the job, changes what its members agree on, runs functions
  kReplica,  // is a copy of the same shard
  kAdmin,    // moves, empties or ends what others use
};
inline bool NeedsToken(Right right) { return right != Right::kObserve; }
// Returns "observe", "read", ...
absl::string_view RightName(Right right);

// Whether a grant with patterns of tables may call a method.
enum class Reach {
  // No: the method may concern any table.
  kAnything,
  // Yes: the handler checks the names of tables or models (ServerCall::CheckTable), or the method concerns
  // none.
  // ProtoHandler and AsyncProtoHandler check the fields `table`, `model` and `config.name` of a request.
  kNamedTables,
};

// A method of a service. There is no default for its right.
struct Method {
  Method(std::string name_of, Right needs, Handler runs, Reach reaches = Reach::kAnything)
      : name(std::move(name_of)), right(needs), reach(reaches), handler(std::move(runs)) {}
  std::string name;  // "Pull"
  Right right;
  Reach reach;
  Handler handler;  // runs on an RPC thread: must not block
};

// A named set of methods.
struct Service {
  std::string name;  // "tandem.v1.ParameterServer"
  std::vector<Method> methods;
};

// Returns a handler for a protobuf method whose `body` computes the response without blocking. The handler
// parses the request (InvalidArgument if it does not parse), calls `body` and serialises the response.
template <typename Request, typename Response>
Handler ProtoHandler(std::function<absl::StatusOr<Response>(const Request&)> body);

// Like ProtoHandler, for a `body` that responds later or continues on another thread. `body` gets the parsed
// request and a function that it must call once, with the response.
template <typename Response>
using Reply = std::function<void(absl::StatusOr<Response>)>;
template <typename Request, typename Response>
Handler AsyncProtoHandler(std::function<void(std::shared_ptr<ServerCall>, Request, Reply<Response>)> body);

namespace internal {
absl::Status ParseRequest(const ServerCall& call, google::protobuf::MessageLite* request);
// Checks the names in the fields `table`, `model` and `config.name`.
template <typename Request>
absl::Status CheckTables(const ServerCall& call, const Request& request);
Bytes SerializeResponse(const google::protobuf::MessageLite& response);
}  // namespace internal

template <typename Request>
absl::Status internal::CheckTables(const ServerCall& call, const Request& request) {
  if (call.grant() == nullptr) return absl::OkStatus();
  if constexpr (requires { absl::string_view(request.table()); }) return call.CheckTable(request.table());
  if constexpr (requires { absl::string_view(request.model()); }) return call.CheckTable(request.model());
  if constexpr (requires { absl::string_view(request.config().name()); }) {
    return call.CheckTable(request.config().name());
  }
  return absl::OkStatus();
}

template <typename Request, typename Response>
Handler ProtoHandler(std::function<absl::StatusOr<Response>(const Request&)> body) {
  return [body = std::move(body)](std::shared_ptr<ServerCall> call) {
    Request request;
    if (absl::Status parsed = internal::ParseRequest(*call, &request); !parsed.ok()) {
      call->Finish(parsed);
      return;
    }
    if (absl::Status may = internal::CheckTables(*call, request); !may.ok()) return call->Finish(may);
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
    if (absl::Status may = internal::CheckTables(*call, request); !may.ok()) return call->Finish(may);
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
