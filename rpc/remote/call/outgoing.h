#ifndef TANDEM_RPC_REMOTE_CALL_OUTGOING_H_
#define TANDEM_RPC_REMOTE_CALL_OUTGOING_H_

// Calls as the caller sees them, without their types.

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
  // From the start of the call to its result, with the wait for a callee that has not registered yet. 0: the
  // agent's default. DeadlineExceeded after that.
  absl::Duration timeout = absl::ZeroDuration();
  // Cancels the call, as Future::Cancel does.
  std::stop_token cancel = {};
};

// Whom to call, and how. Made from a name alone, too.
struct CallTarget {
  CallTarget(const char* name) : name(name) {}             // NOLINT
  CallTarget(std::string name) : name(std::move(name)) {}  // NOLINT
  CallTarget(std::string name, CallSettings settings)
      : name(std::move(name)), settings(std::move(settings)) {}

  std::string name;  // "worker/1"
  CallSettings settings;
};

namespace internal {

// A result: an object, or its encoded form with the way of references out of it.
struct CallResult {
  StoredValue object;
  std::string small;
  Bytes bulk;
  std::shared_ptr<ReferenceScope> references;
};

struct OutgoingCall {
  OutgoingCall(FunctionId id, std::type_index arguments_type, std::type_index result_type)
      : id(id), arguments_type(arguments_type), result_type(result_type) {}

  std::string to;
  FunctionId id;
  absl::Duration timeout;
  std::stop_source stop;
  // The arguments as an object, for a callee in this process; of arguments_type.
  std::shared_ptr<void> arguments;
  std::type_index arguments_type;
  std::type_index result_type;
  absl::StatusOr<Encoded> (*encode)(const void* arguments, ReferenceScope* references) = nullptr;
  // The result stays at the callee under this reference; what is returned is empty.
  std::shared_ptr<ReferenceHandle> keep;
  // Any thread; once.
  absl::AnyInvocable<void(absl::StatusOr<CallResult>) &&> done;
};

template <typename... Args>
absl::StatusOr<Encoded> EncodeArguments(const void* arguments, ReferenceScope* references) {
  Writer writer(references);
  std::apply([&writer](const Args&... each) { (Codec<Args>::Encode(writer, each), ...); },
             *static_cast<const std::tuple<Args...>*>(arguments));
  if (!writer.status().ok()) return writer.status();
  return writer.Take();
}

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

// What a call is done with whose result is a promise's.
template <typename R>
absl::AnyInvocable<void(absl::StatusOr<CallResult>) &&> Fulfil(Promise<R> promise) {
  return [promise = std::move(promise)](absl::StatusOr<CallResult> returned) {
    promise.Set(TakeResult<R>(std::move(returned)));
  };
}

}  // namespace internal
}  // namespace tandem::rpc::remote

#endif  // TANDEM_RPC_REMOTE_CALL_OUTGOING_H_
