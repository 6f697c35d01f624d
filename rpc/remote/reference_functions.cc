// SPDX-License-Identifier: Apache-2.0
#include "rpc/remote/reference_functions.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "rpc/remote/rpc_agent.h"
#include "rpc/remote/rref.h"

namespace tandem::rpc::remote {
namespace {

// The fingerprint does not include the type of the fetched value: the holder knows it, and the call carries
// its name.
FunctionId FetchId() {
  return {kFetch, &internal::TypesOf<void, ForkMessage, std::string>(), /*idempotent=*/true};
}

void ServeFetch(References& references, const std::shared_ptr<Invocation>& call) {
  std::tuple<ForkMessage, std::string> arguments;
  if (!internal::TakeArguments(*call, &arguments)) return;
  const ForkMessage& fork = std::get<0>(arguments);
  if (absl::Status known = references.AddFork(fork); !known.ok()) return call->Fail(std::move(known));
  references.WaitFor(fork.key(), [call, type = std::get<1>(arguments)](absl::StatusOr<StoredValue> value) {
    if (!value.ok()) return call->Fail(value.status());
    if (value->type->name != type || value->type->encode == nullptr) {
      return call->Fail(absl::InvalidArgumentError(absl::StrCat(
          "the value is a ", value->type->name, value->type->encode == nullptr ? ", which is not sent" : "",
          "; the reference is to a ", type)));
    }
    absl::StatusOr<Encoded> encoded = value->type->encode(value->value.get(), call->response_references());
    encoded.ok() ? call->FinishEncoded(*std::move(encoded)) : call->Fail(encoded.status());
  });
}

}  // namespace

absl::Status AgentHasShutDown() {
  return absl::FailedPreconditionError(
      "the agent of this reference has shut down: it can do nothing any more");
}

void References::AddFunctions(Functions* functions, const std::shared_ptr<References>& references) {
  const ServeOptions quick = {.run_inline = true};
  functions->Add(
      kAddFork, [references](const ForkMessage& fork) { return references->AddFork(fork); }, quick);
  functions->Add(
      kRenewForks,
      [references](const std::vector<ForkMessage>& forks) {
        std::vector<int64_t> lost;
        for (size_t i = 0; i < forks.size(); ++i) {
          if (!references->AddFork(forks[i]).ok()) lost.push_back(static_cast<int64_t>(i));
        }
        return lost;
      },
      quick);
  functions->Add(
      kDeleteFork, [references](const ForkMessage& fork) { return references->RemoveFork(fork); }, quick);
  functions->AddEntry({FetchId(), quick, [references](Runtime&, const std::shared_ptr<Invocation>& call) {
                         internal::Guarded(call, [&] { ServeFetch(*references, call); });
                       }});
}

namespace internal {

absl::StatusOr<StoredValue> LocalValueOf(const ReferenceHandle& handle, std::type_index type,
                                         const std::string& name, absl::Duration timeout) {
  const std::shared_ptr<References> home = handle.home();
  if (home == nullptr) return AgentHasShutDown();
  if (!handle.is_local()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the ", name, " lives at ", handle.owner(),
                     ": LocalValue is for there; use ToHere, or call a function there"));
  }
  Promise<StoredValue> promise;
  home->WaitFor(handle.key(),
                [promise](absl::StatusOr<StoredValue> value) { promise.Set(std::move(value)); });
  absl::StatusOr<StoredValue> value = promise.future().Wait(timeout);
  if (!value.ok()) return value;
  if (value->type->type != type) {
    return absl::InvalidArgumentError(
        absl::StrCat("the value is a ", value->type->name, "; the reference is to a ", name));
  }
  return value;
}

absl::StatusOr<CallResult> FetchFrom(const std::shared_ptr<ReferenceHandle>& handle, const std::string& type,
                                     absl::Duration timeout) {
  const absl::Time deadline = MonotonicNow() + timeout;
  if (handle->created().valid()) {
    if (absl::Status made = handle->created().Wait(timeout); !made.ok()) return made;
  }
  if (absl::Status lost = handle->lost(); !lost.ok()) return lost;
  const std::shared_ptr<References> home = handle->home();
  if (home == nullptr) return AgentHasShutDown();
  Promise<CallResult> promise;
  auto call =
      std::make_unique<OutgoingCall>(FetchId(), typeid(std::tuple<ForkMessage, std::string>), typeid(Unit));
  call->to = handle->owner();
  call->timeout = std::max(deadline - MonotonicNow(), absl::Milliseconds(1));
  call->encode = &EncodeArguments<ForkMessage, std::string>;
  call->done = [promise](absl::StatusOr<CallResult> returned) { promise.Set(std::move(returned)); };
  {
    const References::Use use(home.get());
    if (use.agent() == nullptr) return AgentHasShutDown();
    call->arguments = std::make_shared<std::tuple<ForkMessage, std::string>>(
        home->MessageOf(*handle, home->ForkOf(*handle), use.agent()->name()), type);
    use.agent()->Start(std::move(call));
  }
  return promise.future().Wait();  // ends at the call's deadline
}

}  // namespace internal
}  // namespace tandem::rpc::remote
