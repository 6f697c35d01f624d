// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_REMOTE_CALL_OUTGOING_H_
#define TANDEM_RPC_REMOTE_CALL_OUTGOING_H_

// Calls at the caller, independent of their types.

#include <memory>
#include <stop_token>
#include <string>
#include <typeindex>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "rpc/remote/call/function.h"
#include "rpc/remote/call/future.h"
#include "rpc/remote/call/invocation.h"
#include "rpc/remote/call/wire.h"

namespace tandem::rpc::remote {

struct CallSettings {
  // The time from the start of the call to its result, including the wait for a callee that has not
  // registered yet. DeadlineExceeded after that. 0: RpcAgentOptions::call_timeout.
  absl::Duration timeout = absl::ZeroDuration();
  // Cancels the call when it is stopped, like Future::Cancel.
  std::stop_token cancel = {};
};

// The worker to call, and the settings of the call. A name converts to a CallTarget with default settings.
struct CallTarget {
  CallTarget(const char* name) : name(name) {}             // NOLINT
  CallTarget(std::string name) : name(std::move(name)) {}  // NOLINT
  CallTarget(std::string name, CallSettings settings)
      : name(std::move(name)), settings(std::move(settings)) {}

  std::string name;  // "worker/1"
  CallSettings settings;
};

namespace internal {

// The result of a call: an object, or its encoded form and the scope that decodes the references in it.
struct CallResult {
  StoredValue object;
  std::string small;
  Bytes bulk;
  std::shared_ptr<ReferenceScope> references;
};

// A call that has not been sent, with its types as values.
struct OutgoingCall {
  OutgoingCall(FunctionId id, std::type_index arguments_type, std::type_index result_type)
      : id(id), arguments_type(arguments_type), result_type(result_type) {}

  std::string to;
  FunctionId id;
  absl::Duration timeout;
  std::stop_source stop;
  // The arguments as an object of arguments_type. A callee in this process takes them directly.
  std::shared_ptr<void> arguments;
  std::type_index arguments_type;
  std::type_index result_type;
  absl::StatusOr<Encoded> (*encode)(const void* arguments, ReferenceScope* references) = nullptr;
  // If set, the result stays at the callee under this reference, and the returned result is empty.
  std::shared_ptr<ReferenceHandle> keep;
  // Called once with the result, in any thread.
  absl::AnyInvocable<void(absl::StatusOr<CallResult>) &&> done;
};

template <typename... Args>
// Encodes arguments, which are a std::tuple<Args...>.
absl::StatusOr<Encoded> EncodeArguments(const void* arguments, ReferenceScope* references) {
  Writer writer(references);
  std::apply([&writer](const Args&... each) { (Codec<Args>::Encode(writer, each), ...); },
             *static_cast<const std::tuple<Args...>*>(arguments));
  if (!writer.status().ok()) return writer.status();
  return writer.Take();
}

template <typename R>
// Decodes a result.
ResultOf<R> TakeResult(absl::StatusOr<CallResult> returned) {
  if (!returned.ok()) return returned.status();
  if constexpr (std::is_void_v<R>) {
    return absl::OkStatus();
  } else {
    if (returned->object.value != nullptr) return std::move(*static_cast<R*>(returned->object.value.get()));
    if constexpr (Sendable<R>) {
      R value{};
      Reader reader(returned->small, std::move(returned->bulk), returned->references.get());
      if (Codec<R>::Decode(reader, &value) && reader.Finish()) return value;
      return Annotate(reader.status(), "its result cannot be read");
    } else {
      return absl::UnimplementedError("the result is not sent");
    }
  }
}

// Returns an OutgoingCall::done that sets `promise`.
template <typename R>
absl::AnyInvocable<void(absl::StatusOr<CallResult>) &&> Fulfil(Promise<R> promise) {
  return [promise = std::move(promise)](absl::StatusOr<CallResult> returned) {
    promise.Set(TakeResult<R>(std::move(returned)));
  };
}

}  // namespace internal
}  // namespace tandem::rpc::remote

#endif  // TANDEM_RPC_REMOTE_CALL_OUTGOING_H_
