#include "collectives/rendezvous.h"

#include <unistd.h>

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "collectives/network.h"
#include "collectives/store/prefix_store.h"

namespace tandem::collectives {
namespace {

struct Announcement {
  int world_size = 0;
  std::string address, host, token;
};

std::string Serialize(const Announcement& a) {
  return absl::StrCat(a.world_size, "\n", a.address, "\n", a.host, "\n", a.token);
}

absl::StatusOr<Announcement> Parse(const std::string& text) {
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  Announcement a;
  if (lines.size() != 4 || !absl::SimpleAtoi(lines[0], &a.world_size)) {
    return absl::InvalidArgumentError(
        "a rank's announcement is not understood: do all ranks run the same version?");
  }
  a.address = lines[1];
  a.host = lines[2];
  a.token = lines[3];
  return a;
}

std::string RankKey(int rank) { return absl::StrCat("rank/", rank); }

std::string RandomToken() {
  std::random_device device;
  return absl::StrCat("process ", getpid(), " ", absl::Hex(device()), absl::Hex(device()),
                      absl::Hex(device()));
}

// Compares what the ranks that have come say with what this one expects.
absl::Status Compare(const ProcessGroupOptions& options, const Announcement& mine,
                     const std::vector<std::pair<int, Announcement>>& others) {
  for (const auto& [rank, other] : others) {
    if (other.world_size != mine.world_size) {
      return absl::InvalidArgumentError(absl::StrCat("rank ", options.rank, " expects ", mine.world_size,
                                                     " ranks, rank ", rank, " expects ", other.world_size));
    }
  }
  for (const auto& [rank, other] : others) {
    if (other.host == mine.host) continue;
    const bool other_is_local = IsLoopbackAddress(other.address);
    if (other_is_local || IsLoopbackAddress(mine.address)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "rank ", other_is_local ? rank : options.rank, " listens on ",
          other_is_local ? other.address : mine.address, ", which rank ",
          other_is_local ? options.rank : rank,
          " cannot reach from another host; set MASTER_ADDR to an address of rank 0 on the common network "
          "(a host's own name often means 127.0.1.1), or choose the interface"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Meet(Store* store, const ProcessGroupOptions& options, const std::string& address,
                  absl::Time deadline) {
  PrefixStore group(store, absl::StrCat("pg/", options.name));
  const Announcement mine{options.world_size, address, HostIdentity(), RandomToken()};
  const std::string announced = Serialize(mine);
  TANDEM_ASSIGN_OR_RETURN(const std::string held, group.CompareSet(RankKey(options.rank), "", announced));
  if (held != announced) {
    absl::StatusOr<Announcement> holder = Parse(held);
    return absl::AlreadyExistsError(absl::StrCat(
        "rank ", options.rank, " is already taken",
        holder.ok() ? absl::StrCat(" by a process on ", holder->address) : "",
        ": two processes have the same RANK, or an earlier group of this store has the same name"));
  }
  std::vector<std::string> keys;
  for (int rank = 0; rank < options.world_size; ++rank) keys.push_back(RankKey(rank));
  const absl::Status all_came = group.Wait(keys, std::max(deadline - absl::Now(), absl::ZeroDuration()));
  if (!all_came.ok() && all_came.code() != absl::StatusCode::kDeadlineExceeded) return all_came;

  std::vector<int> absent;
  std::vector<std::pair<int, Announcement>> others;
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> present, group.List("rank/"));
  for (int rank = 0; rank < options.world_size; ++rank) {
    if (std::find(present.begin(), present.end(), keys[rank]) == present.end()) absent.push_back(rank);
  }
  for (const std::string& key : present) {
    int rank = 0;
    if (!absl::SimpleAtoi(key.substr(5), &rank) || rank == options.rank) continue;
    TANDEM_ASSIGN_OR_RETURN(const std::string text, group.Get(key, absl::Seconds(1)));
    TANDEM_ASSIGN_OR_RETURN(Announcement other, Parse(text));
    others.emplace_back(rank, std::move(other));
  }
  TANDEM_RETURN_IF_ERROR(Compare(options, mine, others));
  if (!absent.empty()) {
    return absl::DeadlineExceededError(absl::StrCat(NameRanks(absent), " of ", options.world_size,
                                                    " did not come to the rendezvous within ",
                                                    absl::FormatDuration(options.timeout)));
  }
  return absl::OkStatus();
}

}  // namespace tandem::collectives
