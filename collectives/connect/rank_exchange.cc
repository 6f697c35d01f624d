// SPDX-License-Identifier: Apache-2.0
#include "collectives/connect/rank_exchange.h"

#include <algorithm>
#include <map>
#include <random>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"
#include "collectives/ranks.h"
#include "rpc/network.h"

namespace tandem::collectives {
namespace {

// An announcement consists of lines "name=value"; this is the first.
constexpr absl::string_view kVersion = "tandem-rank=1";

std::string Serialize(const RankInfo& i) {
  std::random_device device;  // makes the announcements of two processes differ
  return absl::StrCat(kVersion, "\nworld_size=", i.world_size, "\naddress=", i.self.address,
                      "\nhost=", i.self.host, "\nmachine=", i.machine, "\npid=", i.self.pid,
                      "\nbackend=", i.backend, "\ndebug=", i.debug, "\nmembers=", i.members,
                      "\ntoken=", absl::Hex(device()), absl::Hex(device()), absl::Hex(device()));
}

absl::StatusOr<RankInfo> Parse(int rank, const std::string& text) {
  std::map<std::string, std::string> values;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    std::pair<std::string, std::string> pair = absl::StrSplit(line, absl::MaxSplits('=', 1));
    values.insert(std::move(pair));
  }
  RankInfo i;
  i.rank = rank;
  if (!absl::StartsWith(text, absl::StrCat(kVersion, "\n")) ||
      !absl::SimpleAtoi(values["world_size"], &i.world_size) ||
      !absl::SimpleAtoi(values["pid"], &i.self.pid)) {
    return absl::InvalidArgumentError(absl::StrCat("the announcement of rank ", rank,
                                                   " is not understood: do all ranks run the same version?"));
  }
  i.self.address = values["address"];
  i.self.host = values["host"];
  i.machine = values["machine"];
  i.backend = values["backend"];
  i.debug = values["debug"];
  i.members = values["members"];
  return i;
}

std::string RankKey(int rank) { return absl::StrCat("rank/", rank); }

absl::Duration Until(absl::Time deadline) {
  return std::max(deadline - MonotonicNow(), absl::ZeroDuration());
}

absl::Status Differ(absl::string_view what, int rank_a, absl::string_view a, int rank_b,
                    absl::string_view b) {
  if (rank_a > rank_b) {  // both sides report the same text
    std::swap(rank_a, rank_b);
    std::swap(a, b);
  }
  return absl::InvalidArgumentError(absl::StrCat("ranks disagree about the ", what, ": rank ", rank_a,
                                                 " has ", a, ", rank ", rank_b, " has ", b));
}

// Compares the announcements of the other ranks with what this rank expects.
absl::Status Compare(const RankInfo& me, const std::vector<RankInfo>& others) {
  for (const RankInfo& other : others) {
    if (other.world_size != me.world_size) {
      return Differ("world size", me.rank, absl::StrCat(me.world_size), other.rank,
                    absl::StrCat(other.world_size));
    }
    if (other.backend != me.backend) {
      return Differ("backend", me.rank, absl::StrCat("'", me.backend, "'"), other.rank,
                    absl::StrCat("'", other.backend, "'"));
    }
    if (other.debug != me.debug) {
      return Differ("debug level (TANDEM_DEBUG)", me.rank, me.debug, other.rank, other.debug);
    }
    if (other.members != me.members) {
      return Differ("members of the group", me.rank, me.members, other.rank, other.members);
    }
  }
  for (const RankInfo& other : others) {
    if (other.machine == me.machine) continue;
    const bool other_is_local = rpc::IsLoopbackHost(other.self.address);
    if (!other_is_local && !rpc::IsLoopbackHost(me.self.address)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "rank ", other_is_local ? other.rank : me.rank, " listens on ",
        other_is_local ? other.self.address : me.self.address, ", which rank ",
        other_is_local ? me.rank : other.rank,
        " cannot reach from another host; set MASTER_ADDR to an address of rank 0 on the common network (a "
        "host's own name often means 127.0.1.1), or choose the interface (TANDEM_INTERFACE)"));
  }
  return absl::OkStatus();
}

// Returns the ranks that have no key "<prefix><rank>", and the values of the others.
absl::Status Collect(cluster::Store* store, const std::string& prefix, int world_size,
                     std::vector<int>* absent, std::vector<std::pair<int, std::string>>* present) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> keys, store->List(prefix));
  std::vector<bool> came(world_size);
  std::vector<std::string> wanted;
  for (const std::string& key : keys) {
    int rank = 0;
    // A rank beyond this world comes from a process with another world size, which Compare names.
    if (!absl::SimpleAtoi(absl::StripPrefix(key, prefix), &rank) || rank < 0) continue;
    if (rank < world_size) came[rank] = true;
    present->emplace_back(rank, "");
    wanted.push_back(key);
  }
  for (int rank = 0; rank < world_size; ++rank) {
    if (!came[rank]) absent->push_back(rank);
  }
  if (wanted.empty()) return absl::OkStatus();
  TANDEM_ASSIGN_OR_RETURN(std::vector<std::string> values, store->MultiGet(wanted, absl::Seconds(5)));
  for (size_t i = 0; i < values.size(); ++i) (*present)[i].second = std::move(values[i]);
  std::sort(present->begin(), present->end());
  return absl::OkStatus();
}

absl::Status WaitForAll(cluster::Store* store, const std::string& prefix, int world_size,
                        absl::Time deadline) {
  std::vector<std::string> keys;
  for (int rank = 0; rank < world_size; ++rank) keys.push_back(absl::StrCat(prefix, rank));
  const absl::Status all_came = store->Wait(keys, Until(deadline));
  return absl::IsDeadlineExceeded(all_came) ? absl::OkStatus() : all_came;  // Collect finds the absent ranks
}

}  // namespace

absl::StatusOr<std::vector<RankEndpoint>> ExchangeRankInfo(cluster::Store* store, const RankInfo& me,
                                                           absl::Time deadline, absl::Duration timeout) {
  const std::string announced = Serialize(me);
  TANDEM_ASSIGN_OR_RETURN(const std::string held, store->CompareSet(RankKey(me.rank), "", announced));
  if (held != announced) {
    absl::StatusOr<RankInfo> holder = Parse(me.rank, held);
    return absl::AlreadyExistsError(absl::StrCat(
        "rank ", me.rank, " is already taken",
        holder.ok() ? absl::StrCat(" by process ", holder->self.pid, " on ", holder->self.address) : "",
        ": two processes have the same RANK, or an earlier group of this store has the same name"));
  }
  TANDEM_RETURN_IF_ERROR(WaitForAll(store, "rank/", me.world_size, deadline));
  std::vector<int> absent;
  std::vector<std::pair<int, std::string>> present;
  TANDEM_RETURN_IF_ERROR(Collect(store, "rank/", me.world_size, &absent, &present));
  std::vector<RankInfo> others;
  std::vector<RankEndpoint> peers(me.world_size);
  peers[me.rank] = me.self;
  for (const auto& [rank, text] : present) {
    if (rank == me.rank) continue;
    TANDEM_ASSIGN_OR_RETURN(RankInfo other, Parse(rank, text));
    if (rank < me.world_size) peers[rank] = other.self;
    others.push_back(std::move(other));
  }
  TANDEM_RETURN_IF_ERROR(Compare(me, others));
  if (!absent.empty()) {
    return absl::DeadlineExceededError(absl::StrCat(
        NameRanks(absent), " of ", me.world_size, " did not come to the rendezvous within ",
        absl::FormatDuration(absl::Trunc(timeout + absl::Microseconds(500), absl::Milliseconds(1)))));
  }
  return peers;
}

absl::Status AgreeOnStatus(cluster::Store* store, absl::string_view step, int rank, int world_size,
                           const absl::Status& mine, absl::Time deadline) {
  const std::string prefix = absl::StrCat(step, "/");
  TANDEM_RETURN_IF_ERROR(store->Set(absl::StrCat(prefix, rank),
                                    absl::StrCat(static_cast<int>(mine.code()), " ", mine.message())));
  if (!mine.ok()) return absl::Status(mine.code(), absl::StrCat("rank ", rank, ": ", mine.message()));
  TANDEM_RETURN_IF_ERROR(WaitForAll(store, prefix, world_size, deadline));
  std::vector<int> absent;
  std::vector<std::pair<int, std::string>> present;
  TANDEM_RETURN_IF_ERROR(Collect(store, prefix, world_size, &absent, &present));
  for (const auto& [other, text] : present) {
    const std::pair<std::string, std::string> said = absl::StrSplit(text, absl::MaxSplits(' ', 1));
    int code = 0;
    if (!absl::SimpleAtoi(said.first, &code)) code = static_cast<int>(absl::StatusCode::kUnknown);
    if (code == 0) continue;
    return absl::Status(static_cast<absl::StatusCode>(code), absl::StrCat("rank ", other, ": ", said.second));
  }
  if (absent.empty()) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat(NameRanks(absent), " of ", world_size, " did not connect in time (", step, ")"));
}

}  // namespace tandem::collectives
