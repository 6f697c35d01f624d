// SPDX-License-Identifier: Apache-2.0
#include "ps/failover/store_board.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/timed_wait.h"
#include "cluster/store/remote_store.h"
#include "ps/failover/placement_text.h"
#include "tandem/v1/store.pb.h"

namespace tandem::ps {
namespace {

using tandem::v1::ShardPlacement;

constexpr absl::Duration kPoll = absl::Milliseconds(100);
constexpr absl::Duration kLongestUsualLease = absl::Seconds(10);  // of a member that may not have come yet

// Returns whether a call that changes something, and has failed with `status`, has certainly changed nothing.
bool ChangedNothing(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kUnimplemented:
      return true;
    default:
      return false;
  }
}

}  // namespace

class StoreBoard::Bounded {
 public:
  Bounded(const StoreBoard& board, absl::Duration timeout) {
    if (board.store_ == nullptr) own_.emplace(board.channel_, timeout);
    store_ = board.store_ == nullptr ? &*own_ : board.store_;
  }
  cluster::Store* operator->() { return store_; }

 private:
  std::optional<cluster::RemoteStore> own_;
  cluster::Store* store_;
};

StoreBoard::StoreBoard(cluster::Store* store) : store_(store) {}
StoreBoard::StoreBoard(std::shared_ptr<rpc::Channel> store) : store_(nullptr), channel_(std::move(store)) {}
StoreBoard::~StoreBoard() = default;

void StoreBoard::Cancel() {
  absl::MutexLock lock(&mutex_);
  cancelled_ = true;
}

absl::Status StoreBoard::CheckNotCancelled() const {
  absl::MutexLock lock(&mutex_);
  return cancelled_ ? absl::CancelledError("the board of placements is closed") : absl::OkStatus();
}

absl::StatusOr<std::string> StoreBoard::ReadText(uint32_t shard, absl::Duration timeout) {
  TANDEM_RETURN_IF_ERROR(CheckNotCancelled());
  const std::string key = PlacementKey(shard);
  absl::StatusOr<std::string> text = Bounded(*this, timeout)->GetIfPresent(key, timeout);
  if (!text.ok()) return Annotate(text.status(), absl::StrCat("reading ", key));
  return text;
}

absl::StatusOr<ShardPlacement> StoreBoard::Read(uint32_t shard, absl::Duration timeout) {
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadText(shard, timeout));
  return PlacementFromText(PlacementKey(shard), text);
}

absl::StatusOr<CompareAndSetResult> StoreBoard::CompareAndSet(uint32_t shard, uint64_t expected_version,
                                                              const ShardPlacement& desired,
                                                              absl::Duration timeout) {
  using Outcome = CompareAndSetResult::Outcome;
  if (desired.version() <= expected_version) {
    return absl::InvalidArgumentError(absl::StrCat("placement of shard ", shard, ": version ",
                                                   desired.version(), " cannot follow version ",
                                                   expected_version));
  }
  const absl::Time deadline = MonotonicNow() + timeout;
  // The text is compared as it is stored: another version of Tandem may write the same document differently.
  TANDEM_ASSIGN_OR_RETURN(const std::string expected, ReadText(shard, timeout));
  const std::string key = PlacementKey(shard);
  TANDEM_ASSIGN_OR_RETURN(ShardPlacement current, PlacementFromText(key, expected));
  CompareAndSetResult result;
  if (current.version() != expected_version) {
    result.outcome = Outcome::kChanged;
    result.current = std::move(current);
    return result;
  }
  TANDEM_ASSIGN_OR_RETURN(const std::string text, PlacementToText(desired));
  const absl::Duration left = std::max(deadline - MonotonicNow(), absl::Milliseconds(1));
  absl::StatusOr<std::string> now = Bounded(*this, left)->CompareSet(key, expected, text);
  if (!now.ok()) {
    absl::Status error = Annotate(now.status(), absl::StrCat("changing ", key));
    if (ChangedNothing(error)) return error;
    result.error = std::move(error);
    return result;
  }
  if (*now == text) {
    result.outcome = Outcome::kDone;
    return result;
  }
  TANDEM_ASSIGN_OR_RETURN(result.current, PlacementFromText(key, *now));
  result.outcome = Outcome::kChanged;
  return result;
}

absl::StatusOr<ShardPlacement> StoreBoard::AwaitChange(uint32_t shard, uint64_t known_version,
                                                       absl::Duration timeout) {
  const absl::Time deadline = MonotonicNow() + timeout;
  while (true) {
    const absl::Duration left = std::max(deadline - MonotonicNow(), absl::Milliseconds(1));
    absl::StatusOr<ShardPlacement> placement = Read(shard, left);
    // A store that is away for a moment is waited for.
    if (!placement.ok() && !absl::IsUnavailable(placement.status())) return placement;
    if (placement.ok() && placement->version() != known_version) return placement;
    const absl::Time now = MonotonicNow();
    if (now >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          "the placement of shard ", shard, " has stayed at version ", known_version, " for ",
          absl::FormatDuration(timeout),
          placement.ok() ? "" : absl::StrCat(" as far as is known: ", placement.status().message())));
    }
    absl::MutexLock lock(&mutex_);
    (void)AwaitFor(&mutex_, absl::Condition(&cancelled_), std::min(kPoll, deadline - now));
  }
}

absl::StatusOr<bool> StoreBoard::IsAlive(const std::string& address, absl::Duration timeout) {
  TANDEM_RETURN_IF_ERROR(CheckNotCancelled());
  if (channel_ == nullptr) return absl::UnimplementedError("the board does not know the job's members");
  tandem::v1::MembersResponse members;
  TANDEM_RETURN_IF_ERROR(
      Annotate(rpc::CallProto(*channel_, "/tandem.v1.Store/Members", tandem::v1::MembersRequest(), &members,
                              {.timeout = timeout, .idempotent = true}),
               "asking the job's store for its members"));
  // A store that was restarted does not know its members yet.
  int64_t lease_ms = absl::ToInt64Milliseconds(kLongestUsualLease);
  for (const tandem::v1::MemberInfo& member : members.members()) {
    lease_ms = std::max<int64_t>(lease_ms, member.last().lease_ms());
  }
  if (members.lost_memory_ms() > 0 && members.serving_ms() < lease_ms) return true;
  for (const tandem::v1::MemberInfo& member : members.members()) {
    // An earlier process may have had the same address.
    const tandem::v1::HeartbeatRequest& last = member.last();
    if (last.address() == address && !last.leaving() && member.silent_ms() <= last.lease_ms()) return true;
  }
  return false;
}

absl::Status AnnouncePrimary(cluster::Store& store, Board& board, uint32_t shard, uint64_t term,
                             const std::string& address, absl::Duration timeout) {
  const std::string key = absl::StrCat("ps/", shard);
  // A late call of an earlier primary may change the value in between.
  constexpr int kAttempts = 3;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    // The value is read before the document: a copy that takes over after this writes another value.
    TANDEM_ASSIGN_OR_RETURN(const std::string before, store.GetIfPresent(key, timeout));
    TANDEM_ASSIGN_OR_RETURN(const ShardPlacement placement, board.Read(shard, timeout));
    if (placement.term() != term || before == address) return absl::OkStatus();
    TANDEM_ASSIGN_OR_RETURN(const std::string now, store.CompareSet(key, before, address));
    if (now == address) return absl::OkStatus();
  }
  return absl::AbortedError(
      absl::StrCat(key, " was changed ", kAttempts, " times while this primary announced itself"));
}

}  // namespace tandem::ps
