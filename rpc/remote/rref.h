#ifndef TANDEM_RPC_REMOTE_RREF_H_
#define TANDEM_RPC_REMOTE_RREF_H_

// A reference to a value that lives at its owner, which may be another worker. torch.distributed.rpc's RRef.

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

absl::Status AgentIsGone();

namespace internal {
absl::StatusOr<StoredValue> LocalValueOf(const ReferenceHandle& handle, std::type_index type,
                                         const std::string& name, absl::Duration timeout);
absl::StatusOr<CallResult> FetchFrom(const std::shared_ptr<ReferenceHandle>& handle, const std::string& type,
                                     absl::Duration timeout);
}  // namespace internal

// From Agent::Remote, Agent::Own, or as an argument or a result. Copies are the same reference; the value
// lives until the last one, in whatever worker, is gone, or has not been renewed for a lease. Thread-safe.
template <typename T>
class RRef {
 public:
  // To nothing: valid() is false.
  RRef() = default;
  explicit RRef(std::shared_ptr<ReferenceHandle> handle) : handle_(std::move(handle)) {}

  bool valid() const { return handle_ != nullptr; }
  const std::string& owner() const { return handle_->owner(); }
  bool is_owner() const { return handle_->is_local(); }

  // A copy of the value, brought here; waits until it is made. Errors: what its making failed with; NotFound
  // (this worker's lease ran out); DeadlineExceeded; Unavailable (the owner is gone).
  absl::StatusOr<T> ToHere(absl::Duration timeout = absl::Seconds(60)) const requires Sendable<T>;
  // At its owner: the value itself; waits until it is made. Who shares it takes care of locking.
  // FailedPrecondition elsewhere.
  absl::StatusOr<std::shared_ptr<T>> LocalValue(absl::Duration timeout = absl::Seconds(60)) const;
  // For who called Remote: ends well when the value is made.
  absl::Status WaitUntilMade(absl::Duration timeout = absl::Seconds(60)) const {
    return handle_->created().valid() ? handle_->created().Wait(timeout) : absl::OkStatus();
  }

  // Calls, at the owner, a function whose first argument is this reference: there its LocalValue() is at
  // hand.
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
