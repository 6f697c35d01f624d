// SPDX-License-Identifier: Apache-2.0
#include "rpc/remote/untyped.h"

#include <functional>
#include <stop_token>
#include <typeindex>

#include "absl/strings/str_cat.h"
#include "rpc/remote/rpc_agent.h"

namespace tandem::rpc::remote {
namespace {

// Counted as a call of the application, so that a graceful shutdown waits for it.
constexpr Function<Untyped(RRef<Untyped>)> kUntypedValue{"untyped.value", {.idempotent = true}};

absl::StatusOr<Untyped> ValueOf(absl::StatusOr<StoredValue> stored) {
  if (!stored.ok()) return stored.status();
  if (stored->type->type != typeid(Untyped)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the value is a ", stored->type->name, "; the reference is to an untyped value"));
  }
  return *static_cast<const Untyped*>(stored->value.get());
}

}  // namespace

absl::StatusOr<UntypedMessage> Untyped::message() const {
  if (object_ != nullptr) return object_->Encode();
  return message_ == nullptr ? UntypedMessage() : *message_;
}

void Codec<Untyped>::Encode(Writer& writer, const Untyped& value) {
  absl::StatusOr<UntypedMessage> message = value.message();
  if (!message.ok()) return writer.Fail(message.status());
  writer.String(std::move(message->data));
  Codec<std::vector<Tensor>>::Encode(writer, message->tensors);
  Codec<std::vector<RRef<Untyped>>>::Encode(writer, message->references);
}

bool Codec<Untyped>::Decode(Reader& reader, Untyped* value) {
  UntypedMessage message;
  if (!reader.String(&message.data) || !Codec<std::vector<Tensor>>::Decode(reader, &message.tensors) ||
      !Codec<std::vector<RRef<Untyped>>>::Decode(reader, &message.references)) {
    return false;
  }
  *value = Untyped(std::move(message));
  return true;
}

Function<Untyped(Untyped)> UntypedFunctions::Get(absl::string_view name, FunctionTraits traits) {
  absl::MutexLock lock(&mutex_);
  auto found = names_.find(name);
  if (found == names_.end()) found = names_.emplace(name).first;
  return Function<Untyped(Untyped)>(found->c_str(), traits);
}

void AddUntypedValues(Functions* functions) {
  functions->Add(kUntypedValue, [](const RRef<Untyped>& reference) -> absl::StatusOr<Future<Untyped>> {
    if (!reference.valid()) return absl::InvalidArgumentError("the reference is empty");
    return LocalUntyped(reference);
  });
}

Future<Untyped> FetchUntyped(RpcAgent& agent, const RRef<Untyped>& reference, const CallSettings& settings) {
  if (absl::Status lost = reference.handle()->lost(); !lost.ok()) return Future<Untyped>::Ready(lost);
  const Future<Untyped> fetched =
      agent.RpcAsync(CallTarget(reference.owner(), settings), kUntypedValue, reference);
  const Future<void>& created = reference.handle()->created();
  if (!created.valid()) return fetched;
  // If the call that creates the value fails before it reaches the owner, the owner waits for it in vain.
  Promise<Untyped> promise;
  (void)created.Then([promise, fetched](const absl::Status& status) {
    if (status.ok()) return;
    promise.Set(status);
    fetched.Cancel();
  });
  auto forward = std::make_shared<std::stop_callback<std::function<void()>>>(promise.cancelled(),
                                                                             [fetched] { fetched.Cancel(); });
  (void)fetched.Then(
      [promise, forward](const absl::StatusOr<Untyped>& result) mutable { promise.Set(result); });
  return promise.future();
}

Future<Untyped> LocalUntyped(const RRef<Untyped>& reference) {
  const std::shared_ptr<References> home = reference.handle()->home();
  if (home == nullptr) return Future<Untyped>::Ready(AgentHasShutDown());
  if (!reference.is_owner()) {
    return Future<Untyped>::Ready(absl::FailedPreconditionError(
        absl::StrCat("the value lives at ", reference.owner(), ": fetch it, or call a function there")));
  }
  Promise<Untyped> promise;
  home->WaitFor(reference.handle()->key(),
                [promise](absl::StatusOr<StoredValue> stored) { promise.Set(ValueOf(std::move(stored))); });
  return promise.future();
}

}  // namespace tandem::rpc::remote
