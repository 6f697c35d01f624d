#include "rpc/remote/call/invocation.h"

#include <algorithm>
#include <functional>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"

namespace tandem::rpc::remote {

bool Context::WaitUntilCancelled(absl::Duration at_most) const {
  absl::Notification cancelled;
  const std::stop_callback<std::function<void()>> on_stop(stop_token(), [&cancelled] { cancelled.Notify(); });
  const absl::Time late = deadline() + absl::Nanoseconds(1);
  cancelled.WaitForNotificationWithDeadline(std::min(late, absl::Now() + at_most));
  return IsCancelled();
}

Tensor Context::AnswerTensor(DType dtype, Tensor::Shape shape) const {
  Tensor plain = Tensor::Allocate(dtype, std::move(shape));
  if (plain.bytes() == 0) return plain;
  std::shared_ptr<char> memory = call_->AnswerMemory(plain.bytes());
  return memory == nullptr ? plain : Tensor::Over(std::move(memory), dtype, plain.shape());
}

}  // namespace tandem::rpc::remote
