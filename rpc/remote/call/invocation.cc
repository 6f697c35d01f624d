// SPDX-License-Identifier: Apache-2.0
#include "rpc/remote/call/invocation.h"

#include <algorithm>
#include <exception>
#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/timed_wait.h"
#include "rpc/remote/call/serve.h"

namespace tandem::rpc::remote {

bool internal::FinishArguments(Invocation& call, Reader& reader, bool read) {
  if (read && reader.Finish()) return true;
  call.Fail(Annotate(reader.status(), "its arguments cannot be read"));
  return false;
}

void internal::Guarded(const std::shared_ptr<Invocation>& call, absl::FunctionRef<void()> body) {
  try {
    body();
  } catch (const std::exception& e) {
    call->Fail(absl::InternalError(absl::StrCat("it threw an exception: ", e.what())));
  } catch (...) {
    call->Fail(absl::InternalError("it threw an exception of an unknown type"));
  }
}

bool Context::WaitUntilCancelled(absl::Duration at_most) const {
  TimedNotification cancelled;
  const std::stop_callback<std::function<void()>> on_stop(stop_token(), [&cancelled] { cancelled.Notify(); });
  const absl::Time late = deadline() + absl::Nanoseconds(1);
  cancelled.WaitUntil(std::min(late, MonotonicNow() + at_most));
  return IsCancelled();
}

Tensor Context::RespondWithTensor(DType dtype, Tensor::Shape shape) const {
  Tensor plain = Tensor::Allocate(dtype, std::move(shape));
  if (plain.bytes() == 0) return plain;
  std::shared_ptr<char> memory = call_->ResponseMemory(plain.bytes());
  return memory == nullptr ? plain : Tensor::Over(std::move(memory), dtype, plain.shape());
}

}  // namespace tandem::rpc::remote
