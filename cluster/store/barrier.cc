// SPDX-License-Identifier: Apache-2.0
#include "cluster/store/barrier.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"
#include "cluster/store/limits.h"

namespace tandem::cluster {
namespace {

// Keys under "barrier/<name>/":
//
//   round         the number of the open round (absent: 0)
//   arrived/<r>   "<round> <world size>": the round in which rank r has arrived
//   verdict/<n>   the result of round n: "ok", or the absent ranks. Set once, by CompareSet, so that all
//   ranks
//                 agree
//
// A rank announces itself in the open round. A rank that sees all ranks announced, or whose time is up,
// proposes a verdict. A rank that has read the verdict opens the next round. Verdicts older than a successful
// round are not read any more.
class Round {
 public:
  Round(Store* store, absl::string_view name, int world_size, int rank, absl::Duration timeout)
      : store_(store),
        name_(name),
        prefix_(absl::StrCat("barrier/", name, "/")),
        world_size_(world_size),
        rank_(rank),
        timeout_(timeout),
        deadline_(MonotonicNow() + timeout) {}

  absl::Status Run() {
    while (true) {
      TANDEM_ASSIGN_OR_RETURN(const int64_t round, store_->Add(prefix_ + "round", 0));
      TANDEM_RETURN_IF_ERROR(
          store_->Set(absl::StrCat(prefix_, "arrived/", rank_), absl::StrCat(round, " ", world_size_)));
      // If the round was closed meanwhile, its verdict says whether this rank was counted in it. If there is
      // no verdict, the rank was not counted: a verdict stays until all ranks of its round have read it.
      TANDEM_ASSIGN_OR_RETURN(const int64_t still, store_->Add(prefix_ + "round", 0));
      absl::StatusOr<std::string> verdict =
          still == round ? Await(round) : store_->Get(Verdict(round), absl::ZeroDuration());
      if (still != round && verdict.status().code() == absl::StatusCode::kDeadlineExceeded) continue;
      TANDEM_RETURN_IF_ERROR(verdict);
      const std::string open = absl::StrCat(round);
      TANDEM_RETURN_IF_ERROR(store_->CompareSet(prefix_ + "round", open, absl::StrCat(round + 1)));
      if (*verdict == "ok") return absl::OkStatus();
      const std::pair<absl::string_view, absl::string_view> parts =
          absl::StrSplit(*verdict, absl::MaxSplits(' ', 1));
      if (parts.first == "mismatch") {
        return absl::InvalidArgumentError(absl::StrCat("barrier ", QuoteKey(name_), ": ", parts.second));
      }
      // "absent 1,4 rank 0 waited 5s"
      const std::pair<absl::string_view, absl::string_view> absent =
          absl::StrSplit(parts.second, absl::MaxSplits(' ', 1));
      const std::vector<absl::string_view> ranks = absl::StrSplit(absent.first, ',');
      if (std::find(ranks.begin(), ranks.end(), absl::StrCat(rank_)) != ranks.end() &&
          MonotonicNow() < deadline_) {
        continue;  // that round was over before this rank was seen
      }
      return absl::DeadlineExceededError(absl::StrCat(
          "barrier ", QuoteKey(name_), ": rank", ranks.size() == 1 ? " " : "s ", absl::StrJoin(ranks, ", "),
          " of ", world_size_, " did not come in time (", absent.second, ")"));
    }
  }

 private:
  struct Arrivals {
    std::vector<int> absent;
    std::string mismatch;
  };

  std::string Verdict(int64_t round) const { return absl::StrCat(prefix_, "verdict/", round); }

  absl::StatusOr<Arrivals> Look(int64_t round) {
    const std::string announced = prefix_ + "arrived/";
    TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> keys, store_->List(announced));
    TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> values,
                            store_->MultiGet(keys, absl::ZeroDuration()));
    Arrivals arrivals;
    std::vector<bool> here(world_size_, false);
    for (size_t i = 0; i < keys.size(); ++i) {
      const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(values[i], ' ');
      int64_t where = 0;
      int size = 0, r = 0;
      if (!absl::SimpleAtoi(absl::StripPrefix(keys[i], announced), &r) ||
          !absl::SimpleAtoi(parts.first, &where) || !absl::SimpleAtoi(parts.second, &size)) {
        return absl::InvalidArgumentError(absl::StrCat("store key ", QuoteKey(keys[i]), " holds ",
                                                       QuoteKey(values[i]), ", which no barrier wrote"));
      }
      if (where != round) continue;
      if (r < world_size_) here[r] = true;
      if (size != world_size_ && arrivals.mismatch.empty()) {
        arrivals.mismatch =
            absl::StrCat("mismatch rank ", std::min(r, rank_), " expects ", r < rank_ ? size : world_size_,
                         " ranks, rank ", std::max(r, rank_), " expects ", r < rank_ ? world_size_ : size);
      }
    }
    for (int r = 0; r < world_size_; ++r) {
      if (!here[r]) arrivals.absent.push_back(r);
    }
    return arrivals;
  }

  // Returns the verdict on `round`, proposed by another rank or by this one.
  absl::StatusOr<std::string> Await(int64_t round) {
    const std::string key = Verdict(round);
    // The last rank to arrive sees all the others. Before that, a mismatch is visible too.
    TANDEM_ASSIGN_OR_RETURN(Arrivals arrivals, Look(round));
    if (!arrivals.mismatch.empty()) return store_->CompareSet(key, "", arrivals.mismatch);
    if (arrivals.absent.empty()) return Succeed(round, key);
    auto verdict = store_->Get(key, std::max(deadline_ - MonotonicNow(), absl::ZeroDuration()));
    if (verdict.ok() || verdict.status().code() != absl::StatusCode::kDeadlineExceeded) return verdict;
    TANDEM_ASSIGN_OR_RETURN(arrivals, Look(round));
    if (arrivals.absent.empty()) return Succeed(round, key);
    return store_->CompareSet(key, "",
                              absl::StrCat("absent ", absl::StrJoin(arrivals.absent, ","), " rank ", rank_,
                                           " waited ", absl::FormatDuration(timeout_)));
  }

  absl::StatusOr<std::string> Succeed(int64_t round, const std::string& key) {
    absl::StatusOr<std::string> verdict = store_->CompareSet(key, "", "ok");
    if (!verdict.ok() || *verdict != "ok") return verdict;
    const std::string verdicts = prefix_ + "verdict/";
    TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> old, store_->List(verdicts));
    for (const std::string& one : old) {
      int64_t number = 0;
      if (absl::SimpleAtoi(absl::StripPrefix(one, verdicts), &number) && number < round) {
        TANDEM_RETURN_IF_ERROR(store_->Delete(one));
      }
    }
    return verdict;
  }

  Store* const store_;
  const absl::string_view name_;
  const std::string prefix_;
  const int world_size_;
  const int rank_;
  const absl::Duration timeout_;
  const absl::Time deadline_;
};

}  // namespace

absl::Status StoreBarrier(Store* store, absl::string_view name, int world_size, int rank,
                          absl::Duration timeout) {
  TANDEM_RETURN_IF_ERROR(ValidateStoreKey(name));
  if (world_size < 1 || rank < 0 || rank >= world_size) {
    return absl::InvalidArgumentError(absl::StrCat("barrier ", QuoteKey(name), ": rank ", rank,
                                                   " is not in [0, ", world_size, "), the world size"));
  }
  return Round(store, name, world_size, rank, timeout).Run();
}

}  // namespace tandem::cluster
