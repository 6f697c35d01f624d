#include "collectives/store/fenced_store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status.h"

namespace tandem::collectives {
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

absl::Status FencedStore::Look() {
  if (epoch_ == 0) return absl::OkStatus();
  absl::StatusOr<std::string> held = base_->Get(kEpochKey, absl::ZeroDuration());
  if (!held.ok()) return absl::IsDeadlineExceeded(held.status()) ? absl::OkStatus() : held.status();
  return CheckEpoch(epoch_, who_, *held);
}

template <typename Result>
Result FencedStore::Once(const std::function<Result()>& call) {
  if (!should_continue_) return call();
  TANDEM_RETURN_IF_ERROR(should_continue_());
  if (gone_) {
    return absl::UnavailableError(absl::StrCat("the store", address().empty() ? "" : " at ", address(),
                                               " did not answer before, and is not asked again"));
  }
  Result result = call();
  if (absl::IsUnavailable(internal::AsStatus(result))) gone_ = true;
  return result;
}

template <typename Result>
Result FencedStore::PollUntil(absl::Duration timeout, const std::function<Result(absl::Duration)>& wait) {
  const absl::Time deadline = absl::Now() + timeout;
  while (true) {
    const absl::Duration left = std::max(deadline - absl::Now(), absl::ZeroDuration());
    Result result = Once<Result>([&] { return wait(std::min(left, kPart)); });
    if (left <= kPart || !absl::IsDeadlineExceeded(internal::AsStatus(result))) return result;
    TANDEM_RETURN_IF_ERROR(Look());
  }
}

absl::Status FencedStore::Set(absl::string_view key, absl::string_view value) {
  return Once<absl::Status>([&] { return base_->Set(key, value); });
}

absl::StatusOr<std::string> FencedStore::Get(absl::string_view key, absl::Duration timeout) {
  return PollUntil<absl::StatusOr<std::string>>(timeout,
                                              [&](absl::Duration part) { return base_->Get(key, part); });
}

absl::StatusOr<int64_t> FencedStore::Add(absl::string_view key, int64_t delta) {
  return Once<absl::StatusOr<int64_t>>([&] { return base_->Add(key, delta); });
}

absl::StatusOr<std::string> FencedStore::CompareSet(absl::string_view key, absl::string_view expected,
                                                    absl::string_view desired) {
  return Once<absl::StatusOr<std::string>>([&] { return base_->CompareSet(key, expected, desired); });
}

absl::Status FencedStore::Wait(absl::Span<const std::string> keys, absl::Duration timeout) {
  return PollUntil<absl::Status>(timeout, [&](absl::Duration part) { return base_->Wait(keys, part); });
}

absl::StatusOr<bool> FencedStore::Check(absl::Span<const std::string> keys) {
  return Once<absl::StatusOr<bool>>([&] { return base_->Check(keys); });
}

absl::StatusOr<int64_t> FencedStore::Append(absl::string_view key, absl::string_view value) {
  return Once<absl::StatusOr<int64_t>>([&] { return base_->Append(key, value); });
}

absl::StatusOr<std::vector<std::string>> FencedStore::MultiGet(absl::Span<const std::string> keys,
                                                               absl::Duration timeout) {
  return PollUntil<absl::StatusOr<std::vector<std::string>>>(
      timeout, [&](absl::Duration part) { return base_->MultiGet(keys, part); });
}

absl::Status FencedStore::MultiSet(absl::Span<const std::string> keys, absl::Span<const std::string> values) {
  return Once<absl::Status>([&] { return base_->MultiSet(keys, values); });
}

absl::StatusOr<bool> FencedStore::Delete(absl::string_view key) {
  return Once<absl::StatusOr<bool>>([&] { return base_->Delete(key); });
}

absl::StatusOr<std::vector<std::string>> FencedStore::List(absl::string_view prefix) {
  return Once<absl::StatusOr<std::vector<std::string>>>([&] { return base_->List(prefix); });
}

absl::StatusOr<int64_t> FencedStore::NumKeys() {
  return Once<absl::StatusOr<int64_t>>([&] { return base_->NumKeys(); });
}

absl::Status FencedStore::Push(absl::string_view queue, absl::string_view value) {
  return Once<absl::Status>([&] { return base_->Push(queue, value); });
}

absl::StatusOr<std::string> FencedStore::Pop(absl::string_view queue, absl::Duration timeout) {
  return PollUntil<absl::StatusOr<std::string>>(timeout,
                                              [&](absl::Duration part) { return base_->Pop(queue, part); });
}

absl::StatusOr<int64_t> FencedStore::Length(absl::string_view queue) {
  return Once<absl::StatusOr<int64_t>>([&] { return base_->Length(queue); });
}

}  // namespace tandem::collectives
