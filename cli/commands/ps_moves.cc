// SPDX-License-Identifier: Apache-2.0
// tandem ps move, drain, balance: make followers primaries, and take copies out of their shards.

#include "cli/commands/ps_moves.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"
#include "cli/commands/job_flags.h"
#include "cli/monitor/balance.h"
#include "cli/monitor/find_job.h"
#include "cli/monitor/shards.h"
#include "rpc/connect.h"

namespace tandem::cli {
namespace {

constexpr absl::Duration kLookAgain = absl::Milliseconds(200);
constexpr absl::Duration kAnswer = absl::Seconds(5);  // of one question to a copy or the store
// A copy that has just started, or follows another primary, is waited for this long.
constexpr absl::Duration kAppear = absl::Seconds(10);

struct MoveFlags {
  JobFlags job;
  int shard = -1;
  std::string place;
  bool dry_run = false;
};

void Print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

// The shards of a running job, until a deadline.
class Shards {
 public:
  static absl::StatusOr<Shards> Find(const JobFlags& flags) {
    TANDEM_ASSIGN_OR_RETURN(const launcher::JobAddress job, FindJob(flags));
    TANDEM_ASSIGN_OR_RETURN(std::string store, FindStore(flags));
    return Shards(std::move(store), static_cast<uint32_t>(std::clamp(job.num_servers, 0, 1 << 16)),
                  MonotonicNow() + absl::Seconds(flags.timeout_seconds));
  }

  absl::Duration Left() const {
    return std::max<absl::Duration>(deadline_ - MonotonicNow(), absl::Milliseconds(100));
  }
  absl::StatusOr<std::vector<ShardReport>> Ask() const {
    return AskShards(store_, num_servers_, std::min(Left(), kAnswer));
  }

  // Asks again and again until `look` returns true, or an error. DeadlineExceeded, with what `waits_for`
  // says, at the deadline.
  absl::Status Await(const std::function<absl::StatusOr<bool>(const std::vector<ShardReport>&)>& look,
                     const std::function<std::string()>& waits_for) const {
    while (true) {
      TANDEM_ASSIGN_OR_RETURN(const std::vector<ShardReport> shards, Ask());
      TANDEM_ASSIGN_OR_RETURN(const bool done, look(shards));
      if (done) return absl::OkStatus();
      if (MonotonicNow() + kLookAgain >= deadline_) {
        return absl::DeadlineExceededError(absl::StrCat(waits_for(), " (--timeout)"));
      }
      std::this_thread::sleep_for(absl::ToChronoMilliseconds(kLookAgain));
    }
  }

  template <typename Request, typename Response>
  absl::StatusOr<Response> Call(const std::string& address, const char* method,
                                const Request& request) const {
    TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<rpc::Channel> channel,
                            rpc::ConnectGrpc(address, {.caller = {.member = "tandem ps"}}));
    Response response;
    TANDEM_RETURN_IF_ERROR(rpc::CallProto(*channel, absl::StrCat("/tandem.v1.Failover/", method), request,
                                          &response, {.timeout = Left()}));
    return response;
  }

  // Hands the shard over, and says so.
  absl::Status HandOver(uint32_t shard, const std::string& primary, const std::string& to_id) const {
    tandem::v1::HandOverRequest request;
    request.set_to(to_id);
    TANDEM_ASSIGN_OR_RETURN(const auto done, (Call<tandem::v1::HandOverRequest, tandem::v1::HandOverResponse>(
                                                 primary, "HandOver", request)));
    Print(absl::StrCat("shard ", shard, ": ", done.placement().primary().address(),
                       " is the primary of term ", done.placement().term(), ", calls waited for ",
                       done.pause_ms(), " ms\n"));
    return absl::OkStatus();
  }

 private:
  Shards(std::string store, uint32_t num_servers, absl::Time deadline)
      : store_(std::move(store)), num_servers_(num_servers), deadline_(deadline) {}

  std::string store_;
  uint32_t num_servers_;
  absl::Time deadline_;
};

std::string Addresses(const ShardReport& shard) {
  return absl::StrJoin(shard.copies, ", ", [](std::string* out, const CopyReport& copy) {
    absl::StrAppend(out, copy.replica.address());
  });
}

absl::Status Move(const MoveFlags& flags) {
  TANDEM_ASSIGN_OR_RETURN(const Shards job, Shards::Find(flags.job));
  const absl::Time appear = MonotonicNow() + std::min(kAppear, job.Left() / 2);
  const auto number = static_cast<size_t>(flags.shard);
  tandem::v1::Replica to, from;
  std::string waits_for;
  const auto look = [&](const std::vector<ShardReport>& shards) -> absl::StatusOr<bool> {
    if (number >= shards.size()) {
      return absl::NotFoundError(
          absl::StrCat("the job has shards 0 to ", shards.size() - 1, ", not ", number));
    }
    const ShardReport& shard = shards[number];
    from = shard.placement.primary();
    if (shard.Primary() == nullptr) {
      waits_for = absl::StrCat("shard ", number, ": ", shard.State());
      return false;
    }
    if (from.address() == flags.place) {
      to = from;
      return true;
    }
    for (const tandem::v1::Replica& follower : shard.placement.in_sync()) {
      if (follower.address() != flags.place) continue;
      to = follower;
      return true;
    }
    waits_for = absl::StrCat("shard ", number, ": the copy at ", flags.place, " is not in sync yet");
    for (const CopyReport& copy : shard.copies) {
      if (copy.replica.address() == flags.place) return false;
    }
    if (MonotonicNow() < appear) return false;
    return absl::NotFoundError(absl::StrCat("shard ", number, " has no copy at ", flags.place, ", but at ",
                                            Addresses(shard), "; start one there: tandem ps --index ", number,
                                            " --copy K --listen ", flags.place));
  };
  absl::Status moved;
  do {
    TANDEM_RETURN_IF_ERROR(
        job.Await(look, [&] { return absl::StrCat(waits_for, moved.ok() ? "" : "; ", moved.message()); }));
    if (to.id() == from.id()) {
      Print(absl::StrCat("shard ", number, ": ", to.address(), " is the primary ",
                         moved.ok() ? "already" : "now", "\n"));
      return absl::OkStatus();
    }
    moved = job.HandOver(static_cast<uint32_t>(number), from.address(), to.id());
    // Unavailable: the follower was too slow, or the answer was lost.
  } while (absl::IsUnavailable(moved) && job.Left() > 2 * kLookAgain);
  return moved;
}

// FailedPrecondition if no copy of the shard is anywhere but at `place`.
absl::Status CheckElsewhere(const ShardReport& shard, const std::string& place) {
  for (const CopyReport& copy : shard.copies) {
    if (!IsAt(copy.replica.address(), place)) return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "all copies of shard ", shard.shard, " are at ", place, " (", Addresses(shard),
      "), so it would be lost; start one elsewhere first: tandem ps --index ", shard.shard, " --copy K"));
}

// Lets one copy leave its shard. A primary hands over to a follower elsewhere.
absl::Status DrainCopy(const Shards& job, const std::string& place, uint32_t number,
                       const std::string& address) {
  tandem::v1::LeaveRequest request;
  std::string waits_for;
  bool gone = false;
  const auto look = [&](const std::vector<ShardReport>& shards) -> absl::StatusOr<bool> {
    if (number >= shards.size()) return absl::NotFoundError("the job has fewer shards than before");
    const ShardReport& shard = shards[number];
    gone = std::none_of(shard.copies.begin(), shard.copies.end(),
                        [&](const CopyReport& copy) { return copy.replica.address() == address; });
    if (gone) return true;
    if (shard.placement.primary().address() != address) return true;
    if (shard.Primary() == nullptr) {
      waits_for = absl::StrCat("shard ", number, ": ", shard.State());
      return false;
    }
    TANDEM_RETURN_IF_ERROR(CheckElsewhere(shard, place));
    for (const tandem::v1::Replica& follower : shard.placement.in_sync()) {
      if (IsAt(follower.address(), place)) continue;
      request.set_to(follower.id());
      return true;
    }
    waits_for = absl::StrCat("shard ", number, ": no follower elsewhere is in sync");
    return false;
  };
  TANDEM_RETURN_IF_ERROR(job.Await(look, [&] { return waits_for; }));
  if (gone) return absl::OkStatus();
  TANDEM_ASSIGN_OR_RETURN(const auto left, (job.Call<tandem::v1::LeaveRequest, tandem::v1::LeaveResponse>(
                                               address, "Leave", request)));
  Print(absl::StrCat("shard ", number, ": ", address, " has left; the primary is ",
                     left.placement().primary().address(), ", with ", left.placement().in_sync_size(),
                     " followers in sync\n"));
  return absl::OkStatus();
}

absl::Status Drain(const MoveFlags& flags) {
  TANDEM_ASSIGN_OR_RETURN(const Shards job, Shards::Find(flags.job));
  const absl::Time appear = MonotonicNow() + std::min(kAppear, job.Left() / 2);
  std::vector<ShardReport> shards;
  const auto look = [&](const std::vector<ShardReport>& found) -> absl::StatusOr<bool> {
    shards = found;
    for (const ShardReport& shard : found) {
      for (const CopyReport& copy : shard.copies) {
        if (IsAt(copy.replica.address(), flags.place)) return true;
      }
    }
    return MonotonicNow() >= appear;
  };
  TANDEM_RETURN_IF_ERROR(job.Await(look, [&] { return absl::StrCat("no copy appears at ", flags.place); }));
  std::vector<std::string> places;
  std::vector<std::pair<uint32_t, std::string>> copies;
  for (const ShardReport& shard : shards) {
    const bool here = std::any_of(shard.copies.begin(), shard.copies.end(), [&](const CopyReport& copy) {
      return IsAt(copy.replica.address(), flags.place);
    });
    if (here) TANDEM_RETURN_IF_ERROR(CheckElsewhere(shard, flags.place));
    // Followers leave first, so that no primary hands over to one that is about to leave.
    for (size_t i = shard.copies.size(); i-- > 0;) {
      const std::string& address = shard.copies[i].replica.address();
      places.push_back(address);
      if (IsAt(address, flags.place)) copies.emplace_back(shard.shard, address);
    }
  }
  if (copies.empty()) {
    return absl::NotFoundError(
        absl::StrCat("no copy is at ", flags.place, "; copies are at ", absl::StrJoin(places, ", ")));
  }
  for (const auto& [shard, address] : copies) {
    TANDEM_RETURN_IF_ERROR(DrainCopy(job, flags.place, shard, address));
  }
  return absl::OkStatus();
}

absl::Status Balance(const MoveFlags& flags) {
  TANDEM_ASSIGN_OR_RETURN(const Shards job, Shards::Find(flags.job));
  TANDEM_ASSIGN_OR_RETURN(const std::vector<ShardReport> before, job.Ask());
  const std::vector<PlannedMove> moves = PlanBalance(before);
  Print(HostsToText(before, moves));
  for (const PlannedMove& move : moves) {
    Print(
        absl::StrCat("shard ", move.shard, ": from ", move.from.address(), " to ", move.to.address(), "\n"));
  }
  if (moves.empty()) Print("nothing to move\n");
  if (flags.dry_run) return absl::OkStatus();
  for (const PlannedMove& move : moves) {
    TANDEM_RETURN_IF_ERROR(job.HandOver(move.shard, move.from.address(), move.to.id()));
    // The next shard follows when this one has as many followers as before.
    const auto wanted = before[move.shard].placement.in_sync_size();
    const auto whole = [&](const std::vector<ShardReport>& shards) -> absl::StatusOr<bool> {
      return move.shard < shards.size() && shards[move.shard].placement.in_sync_size() >= wanted;
    };
    TANDEM_RETURN_IF_ERROR(job.Await(whole, [&] {
      return absl::StrCat("shard ", move.shard, " has moved, but its earlier primary, which was at ",
                          move.from.address(), ", is not back as a follower; the other moves were not made");
    }));
  }
  return absl::OkStatus();
}

void AddMoveFlags(CLI::App* command, MoveFlags* flags) {
  flags->job.timeout_seconds = 60;
  AddJobFlags(command, &flags->job);
}

}  // namespace

void AddPsMoves(CLI::App& ps, CommandContext* context) {
  auto move_flags = std::make_shared<MoveFlags>();
  CLI::App* move = ps.add_subcommand("move", "Make the follower at an address the primary of a shard");
  move->footer(
      "Waits until the follower is in sync. Calls wait for some milliseconds; none fails. The earlier "
      "primary becomes a follower.");
  move->add_option("--shard", move_flags->shard, "Number of the shard, from 0")
      ->check(CLI::NonNegativeNumber)
      ->required();
  move->add_option("--to", move_flags->place, "HOST:PORT of a follower, as `tandem ps status` shows it")
      ->required();
  AddMoveFlags(move, move_flags.get());
  move->callback([move_flags, context] { context->exit_code = Report("ps move", Move(*move_flags)); });

  auto drain_flags = std::make_shared<MoveFlags>();
  CLI::App* drain = ps.add_subcommand("drain", "Let the copies at an address leave their shards");
  drain->footer(
      "Primaries hand over to followers elsewhere. The processes end with code 0, and `tandem run` does not "
      "start "
      "them again in this round. To move to another machine: start copies there with `tandem ps`, wait "
      "until\n"
      "`tandem ps status` shows them in sync, then drain the old one.");
  drain->add_option("address", drain_flags->place, "HOST:PORT of one copy, or a host: all copies there")
      ->required();
  AddMoveFlags(drain, drain_flags.get());
  drain->callback([drain_flags, context] { context->exit_code = Report("ps drain", Drain(*drain_flags)); });

  auto balance_flags = std::make_shared<MoveFlags>();
  CLI::App* balance = ps.add_subcommand("balance", "Spread the primaries evenly over the hosts");
  balance->footer(
      "Makes one hand-over after the other; the next one when the shard has its followers again.");
  balance->add_flag("--dry-run", balance_flags->dry_run, "Print the plan only");
  AddMoveFlags(balance, balance_flags.get());
  balance->callback(
      [balance_flags, context] { context->exit_code = Report("ps balance", Balance(*balance_flags)); });
}

}  // namespace tandem::cli
