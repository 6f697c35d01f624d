// SPDX-License-Identifier: Apache-2.0
#include "rpc/channel.h"

#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "rpc/wire/bytes_stream.h"

namespace tandem::rpc {
namespace {
// The response of one call, handed from the RPC thread to the caller's thread.
struct Waiter {
  std::atomic<bool> over{false};  // equal to `ready`, for reads without the lock
  absl::Mutex mutex;
  bool ready ABSL_GUARDED_BY(mutex) = false;
  absl::StatusOr<Bytes> answer ABSL_GUARDED_BY(mutex) = absl::UnknownError("unanswered");
};
}  // namespace

absl::StatusOr<Bytes> Channel::Call(absl::string_view method, Bytes request, const CallOptions& options) {
  // Shared with `done`, which may still be leaving its critical section when this function returns.
  auto waiter = std::make_shared<Waiter>();
  PrepareInlinePoll();
  CallAsync(method, std::move(request), options, [waiter](absl::StatusOr<Bytes> answer) {
    absl::MutexLock lock(&waiter->mutex);
    waiter->answer = std::move(answer);
    waiter->ready = true;
    waiter->over.store(true, std::memory_order_release);
  });
  InlinePoll([&waiter] { return waiter->over.load(std::memory_order_acquire); },
             MonotonicNow() + options.timeout);
  absl::MutexLock lock(&waiter->mutex, absl::Condition(&waiter->ready));
  return std::move(waiter->answer);
}

absl::Status CallProto(Channel& channel, absl::string_view method,
                       const google::protobuf::MessageLite& request, google::protobuf::MessageLite* response,
                       const CallOptions& options) {
  TANDEM_ASSIGN_OR_RETURN(Bytes answer, channel.Call(method, Bytes(request.SerializeAsString()), options));
  BytesInputStream stream(answer);
  if (response->ParseFromZeroCopyStream(&stream)) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(method, " at ", channel.target(), ": the answer of ", answer.size(),
                                          " bytes is no ", response->GetTypeName()));
}

}  // namespace tandem::rpc
