// SPDX-License-Identifier: Apache-2.0
#include "ps/client/bytes_in_flight.h"

#include "absl/strings/str_cat.h"
#include "ps/client/await_space.h"

namespace tandem::ps {

absl::StatusOr<BytesInFlight::Share> BytesInFlight::Take(uint64_t bytes, absl::Duration timeout,
                                                         const std::function<bool()>& go_on) {
  absl::MutexLock lock(&mutex_);
  const auto fits = [this, bytes]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return bytes == 0 || held_ == 0 || (held_ < limit_ && bytes <= limit_ - held_);
  };
  const absl::Status waited = AwaitSpace(&mutex_, absl::Condition(&fits), timeout, go_on);
  if (absl::IsCancelled(waited)) return waited;
  if (!waited.ok()) {
    return absl::ResourceExhaustedError(absl::StrCat("calls under way hold ", held_, " bytes and may hold ",
                                                     limit_, "; ", bytes, " more did not fit within ",
                                                     absl::FormatDuration(timeout),
                                                     ": servers are slower than this worker, so keep fewer "
                                                     "calls in flight, or raise max_bytes_in_flight"));
  }
  held_ += bytes;
  return Share(this, bytes);
}

uint64_t BytesInFlight::held() const {
  absl::MutexLock lock(&mutex_);
  return held_;
}

void BytesInFlight::Release(uint64_t bytes) {
  absl::MutexLock lock(&mutex_);
  held_ -= bytes;
}

}  // namespace tandem::ps
