// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_REMOTE_RREF_H_
#define TANDEM_RPC_REMOTE_RREF_H_

// A reference to a value that its owner, which may be another worker, keeps. The equivalent of
// torch.distributed.rpc's RRef.

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "rpc/remote/call/codec.h"
#include "rpc/remote/call/future.h"
#include "rpc/remote/call/outgoing.h"
#include "rpc/remote/references.h"

namespace tandem::rpc::remote {

// Returns the error of operations whose RPC agent has shut down.
absl::Status AgentHasShutDown();

namespace internal {
// Waits for the value of a local reference and checks that it has the type `type`, called `name` in errors.
absl::StatusOr<StoredValue> LocalValueOf(const ReferenceHandle& handle, std::type_index type,
                                         const std::string& name, absl::Duration timeout);
// Waits until the value is created and fetches it in encoded form. `type` is its type's name.
absl::StatusOr<CallResult> FetchFrom(const std::shared_ptr<ReferenceHandle>& handle, const std::string& type,
                                     absl::Duration timeout);
}  // namespace internal

// A reference to a value of type T. RpcAgent::Remote and RpcAgent::Own return one, and functions take and
// return them. Copies are the same reference. The owner keeps the value until no worker has a reference to
// it, or all that exist have not been renewed for a lease. Thread-safe.
template <typename T>
class RRef {
 public:
  // Constructs an empty reference: valid() returns false and no other method may be called.
  RRef() = default;
  explicit RRef(std::shared_ptr<ReferenceHandle> handle) : handle_(std::move(handle)) {}

  bool valid() const { return handle_ != nullptr; }
  const std::string& owner() const { return handle_->owner(); }
  bool is_owner() const { return handle_->is_local(); }

  // Returns a copy of the value. Blocks until the value is created and has arrived. Errors:
  //
  // - the error of the call that creates the value
  // - NotFound: the owner has released the value because this worker's lease ran out
  // - InvalidArgument: the value is not a T
  // - DeadlineExceeded: `timeout` passed
  // - Unavailable: the owner has left
  // - FailedPrecondition: this worker's RPC agent has shut down
  absl::StatusOr<T> ToHere(absl::Duration timeout = absl::Seconds(60)) const requires Sendable<T>;
  // Returns the value itself, at its owner. Blocks until it is created, for at most `timeout`. Copies of the
  // pointer share one object; its users must synchronize their accesses. FailedPrecondition: this worker is
  // not the owner.
  absl::StatusOr<std::shared_ptr<T>> LocalValue(absl::Duration timeout = absl::Seconds(60)) const;
  // Waits until the call that creates the value has ended and returns its status. Only the worker that called
  // Remote knows this call; elsewhere the function returns OK at once.
  absl::Status WaitUntilCreated(absl::Duration timeout = absl::Seconds(60)) const {
    return handle_->created().valid() ? handle_->created().Wait(timeout) : absl::OkStatus();
  }

  // Calls `function` at the owner, with this reference as the first argument. There the function can use
  // LocalValue().
  template <typename R, typename... Args, typename... Given>
  ResultOf<R> RpcSync(const Function<R(Args...)>& function, Given&&... arguments) const;
  template <typename R, typename... Args, typename... Given>
  Future<R> RpcAsync(const CallSettings& settings, const Function<R(Args...)>& function,
                     Given&&... arguments) const;

  const std::shared_ptr<ReferenceHandle>& handle() const { return handle_; }

 private:
  std::shared_ptr<ReferenceHandle> handle_;
};

template <typename T>
struct Codec<RRef<T>> {
  static std::string Name() { return absl::StrCat("rref<", TypeName<T>(), ">"); }
  static void Encode(Writer& writer, const RRef<T>& value) {
    writer.Varint(value.valid());
    if (value.valid()) writer.Reference(value.handle());
  }
  static bool Decode(Reader& reader, RRef<T>* value) {
    bool valid;
    if (!Codec<bool>::Decode(reader, &valid)) return false;
    std::shared_ptr<ReferenceHandle> handle;
    if (valid && !reader.Reference(&handle)) return false;
    *value = RRef<T>(std::move(handle));
    return true;
  }
};

template <typename T>
absl::StatusOr<T> RRef<T>::ToHere(absl::Duration timeout) const requires Sendable<T> {
  if (is_owner()) {
    absl::StatusOr<std::shared_ptr<T>> value = LocalValue(timeout);
    if (!value.ok()) return value.status();
    return **value;
  }
  return internal::TakeResult<T>(internal::FetchFrom(handle_, TypeName<T>(), timeout));
}

template <typename T>
absl::StatusOr<std::shared_ptr<T>> RRef<T>::LocalValue(absl::Duration timeout) const {
  absl::StatusOr<StoredValue> kept = internal::LocalValueOf(*handle_, typeid(T), TypeName<T>(), timeout);
  if (!kept.ok()) return kept.status();
  return std::static_pointer_cast<T>(kept->value);
}

}  // namespace tandem::rpc::remote

#endif  // TANDEM_RPC_REMOTE_RREF_H_
