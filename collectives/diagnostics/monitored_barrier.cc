// SPDX-License-Identifier: Apache-2.0
#include "collectives/diagnostics/monitored_barrier.h"

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"

namespace tandem::collectives {
namespace {

constexpr absl::string_view kPassed = "passed";
constexpr char kGivenUp[] = "given up by ";  // "given up by 0 after 5s: 1,3"

std::string Prefix(uint64_t round) { return absl::StrCat("monitored_barrier/", round, "/"); }

}  // namespace

absl::Status MonitoredBarrier::Wait(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  const uint64_t round = round_++;
  if (world_size_ == 1) return absl::OkStatus();
  absl::Status status = WaitRound(round, timeout);
  if (status.ok()) {
    ForgetRoundsBefore(round);
    return status;
  }
  return Annotate(status, absl::StrCat("monitored_barrier #", round, " of group '", group_, "'"));
}

absl::Status MonitoredBarrier::WaitRound(uint64_t round, absl::Duration timeout) {
  const absl::Time deadline = MonotonicNow() + timeout;
  const std::string prefix = Prefix(round), key = absl::StrCat(prefix, "verdict");
  TANDEM_RETURN_IF_ERROR(store_->Set(absl::StrCat(prefix, "here/", rank_), "1"));
  TANDEM_ASSIGN_OR_RETURN(const int64_t count, store_->Add(absl::StrCat(prefix, "count"), 1));
  if (count >= world_size_) {
    // Count again: a store may have had to repeat an addition whose response was lost.
    TANDEM_ASSIGN_OR_RETURN(const std::string absent, Absent(prefix));
    if (absent.empty()) {
      TANDEM_ASSIGN_OR_RETURN(const std::string verdict, store_->CompareSet(key, "", kPassed));
      return Judge(verdict);
    }
  }
  // A rank that arrives late finds the verdict there.
  const absl::StatusOr<std::string> verdict =
      store_->Get(key, std::max(absl::ZeroDuration(), deadline - MonotonicNow()));
  if (verdict.ok()) return Judge(*verdict);
  if (!absl::IsDeadlineExceeded(verdict.status())) return verdict.status();

  TANDEM_ASSIGN_OR_RETURN(const std::string absent, Absent(prefix));
  const std::string proposal =
      absent.empty() ? std::string(kPassed)
                     : absl::StrCat(kGivenUp, rank_, " after ", absl::FormatDuration(timeout), ": ", absent);
  TANDEM_ASSIGN_OR_RETURN(const std::string decided, store_->CompareSet(key, "", proposal));
  return Judge(decided);
}

absl::Status MonitoredBarrier::Judge(const std::string& verdict) const {
  if (verdict == kPassed) return absl::OkStatus();
  if (!absl::StartsWith(verdict, kGivenUp)) {
    return absl::InternalError(absl::StrCat("the store holds '", verdict, "' where a verdict should be"));
  }
  const std::vector<std::string> parts = absl::StrSplit(verdict, ": ");
  const std::vector<std::string> absent = absl::StrSplit(parts.back(), ',');
  std::string text = absl::StrCat(absent.size() == 1 ? "rank " : "ranks ", absl::StrJoin(absent, ", "),
                                  " did not come; rank ", parts[0].substr(sizeof(kGivenUp) - 1));
  text = absl::StrReplaceAll(text, {{" after ", " gave up after "}});
  if (std::find(absent.begin(), absent.end(), absl::StrCat(rank_)) != absent.end()) {
    absl::StrAppend(&text, "; this rank came when the others had already given up");
  }
  return absl::DeadlineExceededError(text);
}

absl::StatusOr<std::string> MonitoredBarrier::Absent(const std::string& prefix) const {
  const std::string here = absl::StrCat(prefix, "here/");
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> keys, store_->List(here));
  std::vector<bool> came(world_size_);
  for (const std::string& key : keys) {
    int rank = -1;
    if (absl::SimpleAtoi(absl::string_view(key).substr(here.size()), &rank) && rank >= 0 &&
        rank < world_size_) {
      came[rank] = true;
    }
  }
  std::vector<int> absent;
  for (int rank = 0; rank < world_size_; ++rank) {
    if (!came[rank]) absent.push_back(rank);
  }
  return absl::StrJoin(absent, ",");
}

void MonitoredBarrier::ForgetRoundsBefore(uint64_t round) {
  // All ranks have come to `round`, so none will read an earlier one. A key that cannot be deleted now costs
  // a few bytes of the store.
  for (; oldest_ < round; ++oldest_) {
    const std::string prefix = Prefix(oldest_);
    store_->Delete(absl::StrCat(prefix, "here/", rank_)).status().IgnoreError();
    if (rank_ != 0) continue;
    store_->Delete(absl::StrCat(prefix, "count")).status().IgnoreError();
    store_->Delete(absl::StrCat(prefix, "verdict")).status().IgnoreError();
  }
}

}  // namespace tandem::collectives
