// SPDX-License-Identifier: Apache-2.0
#include "collectives/backends/shm/shared_failure_state.h"

#include <sched.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"

namespace tandem::collectives::shm {
namespace {

enum RecordState : uint32_t { kNone = 0, kBeingWritten, kWritten };

}  // namespace

bool SharedFailureState::Write(const absl::Status& failure) {
  GroupHeader& header = segment_->header();
  FailureRecord& record = header.failure;
  uint32_t none = kNone;
  if (!record.state.compare_exchange_strong(none, kBeingWritten, std::memory_order_acq_rel)) return false;
  record.rank = rank_;
  record.code = static_cast<int32_t>(failure.code());
  record.length = static_cast<uint32_t>(std::min(failure.message().size(), sizeof(record.text)));
  std::memcpy(record.text, failure.message().data(), record.length);
  record.state.store(kWritten, std::memory_order_release);
  header.failed.store(1, std::memory_order_seq_cst);
  return true;
}

absl::Status SharedFailureState::Report(const absl::Status& failure) {
  if (!Write(failure)) {
    // Another rank is writing, or was killed while it wrote; in the second case this failure is as good as
    // any.
    const absl::Time give_up_at = MonotonicNow() + absl::Milliseconds(100);
    while (word().load(std::memory_order_acquire) == 0 && MonotonicNow() < give_up_at) sched_yield();
    if (word().load(std::memory_order_acquire) == 0) {
      absl::MutexLock lock(&mutex_);
      if (failure_.ok()) failure_ = failure;
      segment_->header().failed.store(1, std::memory_order_seq_cst);
    }
  }
  segment_->WakeAll();
  return Failure();
}

void SharedFailureState::Abort(const absl::Status& reason) {
  const absl::Status aborted =
      absl::AbortedError(absl::StrCat("rank ", rank_, " aborted the group: ", reason.message()));
  {
    absl::MutexLock lock(&mutex_);
    if (!failure_.ok() || word().load(std::memory_order_acquire) != 0) return;
    failure_ = reason.ok() ? aborted : reason;
  }
  (void)Report(aborted);  // another rank may have failed the group first: then all report that failure
}

absl::Status SharedFailureState::Failure() {
  absl::MutexLock lock(&mutex_);
  if (!failure_.ok()) return failure_;
  const FailureRecord& record = segment_->header().failure;
  const auto code = static_cast<absl::StatusCode>(record.code);
  const size_t length = std::min<size_t>(record.length, sizeof(record.text));
  if (record.state.load(std::memory_order_acquire) != kWritten || record.code < 1 || record.code > 16) {
    failure_ =
        absl::UnavailableError("the group has failed; the rank that noticed it died before it said why");
  } else {
    failure_ = absl::Status(code, absl::string_view(record.text, length));
  }
  return failure_;
}

}  // namespace tandem::collectives::shm
