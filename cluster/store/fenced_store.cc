// SPDX-License-Identifier: Apache-2.0
#include "cluster/store/fenced_store.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"

namespace tandem::cluster {
namespace {

constexpr char kEpochKey[] = "job/epoch";
constexpr absl::Duration kPart = absl::Milliseconds(250);

absl::Status OldEpoch(absl::string_view who, int64_t epoch, int64_t now) {
  return absl::FailedPreconditionError(
      absl::StrCat(who, " belongs to epoch ", epoch, "; the job is at epoch ", now,
                   ": its other processes have gone on without this one, or it was stopped for too long"));
}

absl::Status CheckEpoch(int64_t epoch, absl::string_view who, const std::string& held) {
  int64_t now = 0;
  if (!absl::SimpleAtoi(held, &now)) {
    return absl::FailedPreconditionError(
        absl::StrCat("the store's '", kEpochKey, "' is no number: '", held, "'"));
  }
  return now > epoch ? OldEpoch(who, epoch, now) : absl::OkStatus();
}

}  // namespace

absl::Status EnterEpoch(Store* store, int64_t epoch, absl::string_view who) {
  const std::string mine = absl::StrCat(epoch);
  std::string expected;
  while (true) {
    TANDEM_ASSIGN_OR_RETURN(const std::string held, store->CompareSet(kEpochKey, expected, mine));
    if (held == mine) return absl::OkStatus();
    if (!held.empty()) TANDEM_RETURN_IF_ERROR(CheckEpoch(epoch, who, held));
    expected = held;
  }
}

absl::Status FencedStore::CheckJobEpoch() {
  if (epoch_ == 0) return absl::OkStatus();
  absl::StatusOr<std::string> held = base()->Get(kEpochKey, absl::ZeroDuration());
  if (!held.ok()) return absl::IsDeadlineExceeded(held.status()) ? absl::OkStatus() : held.status();
  return CheckEpoch(epoch_, who_, *held);
}

absl::Status FencedStore::Forward(absl::FunctionRef<absl::Status()> call) {
  if (!should_continue_) return call();
  TANDEM_RETURN_IF_ERROR(should_continue_());
  if (gone_) {
    return absl::UnavailableError(absl::StrCat("the store", address().empty() ? "" : " at ", address(),
                                               " did not answer before, and is not asked again"));
  }
  const absl::Status status = call();
  if (absl::IsUnavailable(status)) gone_ = true;
  return status;
}

absl::Status FencedStore::ForwardWait(absl::Duration timeout,
                                      absl::FunctionRef<absl::Status(absl::Duration)> call) {
  const absl::Time deadline = MonotonicNow() + timeout;
  while (true) {
    const absl::Duration left = std::max(deadline - MonotonicNow(), absl::ZeroDuration());
    const absl::Status status = Forward([&] { return call(std::min(left, kPart)); });
    if (left <= kPart || !absl::IsDeadlineExceeded(status)) return status;
    TANDEM_RETURN_IF_ERROR(CheckJobEpoch());
  }
}

}  // namespace tandem::cluster
