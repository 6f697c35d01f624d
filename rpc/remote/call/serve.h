// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_REMOTE_CALL_SERVE_H_
#define TANDEM_RPC_REMOTE_CALL_SERVE_H_

// Connects a typed C++ function with an Invocation: takes the arguments, runs the function, and delivers what
// it returns or throws.

#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "rpc/remote/call/function.h"
#include "rpc/remote/call/future.h"
#include "rpc/remote/call/invocation.h"

namespace tandem::rpc::remote::internal {

// Completes the reading of arguments; `read` tells whether all could be read. Returns false after failing the
// call.
bool FinishArguments(Invocation& call, Reader& reader, bool read);

// Takes the call's arguments. Returns false after failing the call.
template <typename... Args>
bool TakeArguments(Invocation& call, std::tuple<Args...>* arguments) {
  if (void* direct = call.direct_arguments(typeid(std::tuple<Args...>)); direct != nullptr) {
    *arguments = std::move(*static_cast<std::tuple<Args...>*>(direct));
    return true;
  }
  Reader reader = call.encoded_arguments();
  const bool read = std::apply(
      [&reader](auto&... each) {
        return (Codec<std::remove_cvref_t<decltype(each)>>::Decode(reader, &each) && ...);
      },
      *arguments);
  return FinishArguments(call, reader, read);
}

// Finishes the call with a value, in the form that the caller needs. Fails the call if the value cannot be
// encoded (Unimplemented: its type has no Codec).
template <typename R>
void Reply(Invocation& call, std::shared_ptr<R> value) {
  const std::type_index type = typeid(R);
  if (call.form(type) != Invocation::Form::kEncoded) {
    return call.FinishObject({std::move(value), &ValueTypeOf<R>()});
  }
  if constexpr (std::is_same_v<R, Unit>) {
    call.FinishEncoded({});
  } else if constexpr (Sendable<R>) {
    Writer writer(call.response_references());
    Codec<R>::Encode(writer, *value);
    if (!writer.status().ok()) return call.Fail(Annotate(writer.status(), "its result cannot be sent"));
    call.FinishEncoded(writer.Take());
  } else {
    call.Fail(absl::UnimplementedError(
        absl::StrCat("a ", TypeName<R>(), " is not sent: call it by Remote, which gives an RRef to it")));
  }
}

// Finishes the call with what the function returned: R, an absl::Status, an absl::StatusOr, a
// std::unique_ptr<R> or a Future<R>.
template <typename R, typename Given>
void Deliver(const std::shared_ptr<Invocation>& call, Given given) {
  using V = ValueOf<R>;
  if constexpr (std::is_same_v<Given, absl::Status>) {
    static_assert(std::is_void_v<R>, "the function gives a value");
    given.ok() ? Reply(*call, std::make_shared<V>()) : call->Fail(std::move(given));
  } else if constexpr (std::is_same_v<Given, std::unique_ptr<V>>) {
    Reply(*call, std::shared_ptr<V>(std::move(given)));
  } else if constexpr (std::is_same_v<Given, Future<R>>) {
    // The caller's cancellation cancels the future.
    auto forward = std::make_shared<std::stop_callback<std::function<void()>>>(call->stop_token(),
                                                                               [given] { given.Cancel(); });
    given.Then([call, forward](const ResultOf<R>& result) { Deliver<R>(call, result); });
  } else if constexpr (std::is_convertible_v<Given, V>) {
    Reply(*call, std::make_shared<V>(std::move(given)));
  } else {  // StatusOr of one of these
    if (!given.ok()) return call->Fail(given.status());
    Deliver<R>(call, *std::move(given));
  }
}

// Runs `body`. If it throws, the call fails with Internal.
void Guarded(const std::shared_ptr<Invocation>& call, absl::FunctionRef<void()> body);

// Runs `body` with the call's arguments, preceded by a Context if `body` takes one, and finishes the call
// with its result. Fails the call if the arguments cannot be read, or with Internal if `body` throws.
template <typename R, typename... Args, typename Body>
void Serve(Body& body, const std::shared_ptr<Invocation>& call) {
  Guarded(call, [&] {
    std::tuple<Args...> arguments;
    if (!TakeArguments(*call, &arguments)) return;
    Context context(call);
    const auto run = [&](Args&... each) -> decltype(auto) {
      if constexpr (std::is_invocable_v<Body&, const Context&, Args...>) {
        return body(context, std::move(each)...);
      } else {
        return body(std::move(each)...);
      }
    };
    if constexpr (std::is_void_v<decltype(std::apply(run, arguments))>) {
      static_assert(std::is_void_v<R>, "the function must return what is declared");
      std::apply(run, arguments);
      Reply(*call, std::make_shared<Unit>());
    } else {
      Deliver<R>(call, std::apply(run, arguments));
    }
  });
}

}  // namespace tandem::rpc::remote::internal

#endif  // TANDEM_RPC_REMOTE_CALL_SERVE_H_
