// SPDX-License-Identifier: Apache-2.0
#include "base/cuda/device_scope.h"

#include <algorithm>
#include <thread>

#include "absl/time/clock.h"
#include "base/clock.h"

namespace tandem::cuda {

DeviceScope::DeviceScope(CudaApi* cuda, int device)
    : cuda_(cuda), capture_mode_(kCaptureModeRelaxed), device_(device) {
  if (cuda_->ExchangeCaptureMode(&capture_mode_) != kCudaSuccess) capture_mode_ = kCaptureModeRelaxed;
  if (cuda_->GetDevice(&before_) != kCudaSuccess) before_ = -1;
  if (before_ != device_) cuda_->SetDevice(device_);
}

DeviceScope::~DeviceScope() {
  if (before_ >= 0 && before_ != device_ && cuda_->HasPrimaryContext(before_)) cuda_->SetDevice(before_);
  if (capture_mode_ != kCaptureModeRelaxed) cuda_->ExchangeCaptureMode(&capture_mode_);
}

EventQueries::EventQueries(CudaApi* cuda) : cuda_(cuda), capture_mode_(kCaptureModeRelaxed) {
  if (cuda_->ExchangeCaptureMode(&capture_mode_) != kCudaSuccess) capture_mode_ = kCaptureModeRelaxed;
}

EventQueries::~EventQueries() {
  if (not_ready_) cuda_->GetLastError();
  if (capture_mode_ != kCaptureModeRelaxed) cuda_->ExchangeCaptureMode(&capture_mode_);
}

int EventQueries::Query(void* event) {
  const int state = cuda_->EventQuery(event);
  if (state == kCudaNotReady) not_ready_ = true;
  return state;
}

void PollPause::Wait() {
  constexpr absl::Duration kYield = absl::Microseconds(200);
  const absl::Time now = MonotonicNow();
  if (begin_ == absl::InfinitePast()) begin_ = now;
  if (now - begin_ < kYield) {
    std::this_thread::yield();
  } else {
    absl::SleepFor(std::min((now - begin_) / 16, absl::Milliseconds(1)));
  }
}

}  // namespace tandem::cuda
