// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_REMOTE_CALL_OUTGOING_H_
#define TANDEM_RPC_REMOTE_CALL_OUTGOING_H_

// Calls at the caller: the settings that a program gives with a call (CallTarget), and the form in which the
// agent sends calls of all types (internal::OutgoingCall). Calls at the callee are in invocation.h.

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
  // The longest time from the start of the call to its result, including the wait for a callee that has not
  // registered yet. The call ends with DeadlineExceeded after that. 0 or less: RpcAgentOptions::call_timeout.
  absl::Duration timeout = absl::ZeroDuration();
  // When a stop is requested, the call ends with Cancelled, as after Future::Cancel. The default never does.
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

// The result of a call, in one of three forms:
//
//   - an object, if object.value is not null: the callee is in this process, and the types are equal;
//   - else its encoding (wire.h), with the scope that decodes the references in it;
//   - empty, if the result stays at the callee (OutgoingCall::keep).
struct CallResult {
  StoredValue object;
  std::string small;
  Bytes bulk;
  std::shared_ptr<ReferenceScope> references;
};

// A call that has not been sent. Its types are values here, so that the code that sends it is not a template.
struct OutgoingCall {
  OutgoingCall(FunctionId id, std::type_index arguments_type, std::type_index result_type)
      : id(id), arguments_type(arguments_type), result_type(result_type) {}

  std::string to;  // the callee's name, "worker/1"
  FunctionId id;
  absl::Duration timeout;  // as CallSettings::timeout
  std::stop_source stop;   // a stop request cancels the call
  // The arguments as an object of arguments_type. A callee in this process with the same types moves from it.
  // For any other callee it is encoded, and released before the call is sent.
  std::shared_ptr<void> arguments;
  std::type_index arguments_type;  // std::tuple<Args...>
  std::type_index result_type;
  // Encodes *arguments (EncodeArguments). Must be set.
  absl::StatusOr<Encoded> (*encode)(const void* arguments, ReferenceScope* references) = nullptr;
  // If set, the result stays at the callee under this reference, and the CallResult is empty.
  std::shared_ptr<ReferenceHandle> keep;
  // Called exactly once, with the result or the call's error. It may run on any thread, also on the one that
  // starts the call, before RpcAgent::Start returns. It must not block.
  absl::AnyInvocable<void(absl::StatusOr<CallResult>) &&> done;
};

// Encodes the std::tuple<Args...> at `arguments` and registers the references in it with `references`. Both
// are used only during the call. Returns the first error of a Codec.
template <typename... Args>
absl::StatusOr<Encoded> EncodeArguments(const void* arguments, ReferenceScope* references) {
  Writer writer(references);
  std::apply([&writer](const Args&... each) { (Codec<Args>::Encode(writer, each), ...); },
             *static_cast<const std::tuple<Args...>*>(arguments));
  if (!writer.status().ok()) return writer.status();
  return writer.Take();
}

// Returns the result as an R: moved out of the object, or decoded. Errors:
//
//   - that of `returned`;
//   - the Reader's, if the encoding is not that of an R;
//   - Unimplemented: the result is encoded, but no Codec can decode an R.
template <typename R>
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

// Returns an OutgoingCall::done that sets `promise` to the result as an R (TakeResult).
template <typename R>
absl::AnyInvocable<void(absl::StatusOr<CallResult>) &&> Fulfil(Promise<R> promise) {
  return [promise = std::move(promise)](absl::StatusOr<CallResult> returned) {
    promise.Set(TakeResult<R>(std::move(returned)));
  };
}

}  // namespace internal
}  // namespace tandem::rpc::remote

#endif  // TANDEM_RPC_REMOTE_CALL_OUTGOING_H_
