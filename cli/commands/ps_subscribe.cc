// SPDX-License-Identifier: Apache-2.0
// tandem ps subscribe: copies the tables of a running job to a directory, and keeps the copy up to date.

#include "cli/commands/ps_subscribe.h"

#include <poll.h>

#include <csignal>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/local_path.h"
#include "base/logging.h"
#include "base/process/signal_pipe.h"
#include "base/status.h"
#include "cli/commands/job_flags.h"
#include "cli/monitor/find_job.h"
#include "cluster/join.h"
#include "cluster/store/remote_store.h"
#include "ps/client/route/connect_shard.h"
#include "ps/subscription/directory_writer.h"
#include "ps/subscription/subscription.h"
#include "rpc/connect.h"

namespace tandem::cli {
namespace {

// How long the command waits for changes before it looks for a signal.
constexpr absl::Duration kTick = absl::Milliseconds(200);
// Pause after a commit that has failed, for example because the disk is full.
constexpr absl::Duration kPause = absl::Seconds(1);

struct SubscribeFlags {
  JobFlags job;
  std::string out;
  std::vector<std::string> tables;
  double every_seconds = 10;
  int deltas = 100;
  bool once = false;
};

absl::StatusOr<std::vector<std::unique_ptr<rpc::Channel>>> ConnectServers(const JobFlags& flags) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> addresses, FindServers(flags));
  ps::ConnectShardOptions options{.timeout = absl::Seconds(flags.timeout_seconds)};
  if (flags.servers.empty()) {
    TANDEM_ASSIGN_OR_RETURN(const std::string store_address, FindStore(flags));
    TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<rpc::Channel> channel, cluster::ObserveStore(store_address));
    const auto store = std::make_shared<cluster::RemoteStore>(std::move(channel), options.timeout);
    options.read = [store](const std::string& key, absl::Duration timeout) {
      return store->GetIfPresent(key, timeout);
    };
  }
  std::vector<std::unique_ptr<rpc::Channel>> channels;
  for (const std::string& address : addresses) {
    const auto index = static_cast<uint32_t>(channels.size());
    if (address.empty()) {
      return absl::UnavailableError(absl::StrCat("server ", index, " has not registered yet; try again"));
    }
    options.shard = index;
    options.address = address;
    TANDEM_ASSIGN_OR_RETURN(ps::ShardConnection shard, ps::ConnectShard(options));
    channels.push_back(std::move(shard.channel));
  }
  return channels;
}

// Waits for `time`. Returns true if a signal has come.
bool SignalWithin(SignalPipe& signals, absl::Duration time) {
  pollfd readable{.fd = signals.fd(), .events = POLLIN};
  (void)::poll(&readable, 1, static_cast<int>(absl::ToInt64Milliseconds(time)));
  return signals.Next().has_value();
}

// Writes what `writer` has, again and again if that fails. Returns false if a signal has come before.
bool CommitInTheEnd(ps::DirectoryWriter& writer, const std::string& position, SignalPipe& signals) {
  while (true) {
    const absl::StatusOr<std::string> committed = writer.Commit(position);
    if (committed.ok()) {
      std::printf("%s\n", committed->c_str());
      std::fflush(stdout);
      return true;
    }
    LogWarning(absl::StrCat(committed.status().message(), "; trying again"));
    if (SignalWithin(signals, kPause)) return false;
  }
}

absl::Status Subscribe(const SubscribeFlags& flags) {
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<SignalPipe> signals, SignalPipe::Install({SIGTERM, SIGINT}));
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<ps::DirectoryWriter> writer,
                          ps::DirectoryWriter::Open(flags.out, {.deltas = flags.deltas}));
  TANDEM_ASSIGN_OR_RETURN(std::vector<std::unique_ptr<rpc::Channel>> channels, ConnectServers(flags.job));
  TANDEM_ASSIGN_OR_RETURN(
      const std::unique_ptr<ps::Subscription> subscription,
      ps::Subscription::Open(std::move(channels), {.tables = flags.tables, .position = writer->position()}));
  absl::Time next_commit = absl::InfinitePast();
  while (!signals->Next().has_value()) {
    absl::StatusOr<ps::ChangeBatch> batch = subscription->Next(kTick);
    if (batch.ok()) {
      TANDEM_RETURN_IF_ERROR(writer->Add(*std::move(batch)));
    } else if (absl::IsUnavailable(batch.status())) {
      LogWarning(absl::StrCat(batch.status().message(), "; asking again"));
    } else if (!absl::IsDeadlineExceeded(batch.status())) {
      return batch.status();
    }
    if (!subscription->caught_up()) continue;
    if (writer->has_changes() && (flags.once || MonotonicNow() >= next_commit)) {
      // No changes are asked for meanwhile, so that a full disk does not fill the memory, too.
      if (!CommitInTheEnd(*writer, subscription->position(), *signals)) return absl::OkStatus();
      next_commit = MonotonicNow() + absl::Seconds(flags.every_seconds);
    }
    if (flags.once) return absl::OkStatus();
  }
  return absl::OkStatus();
}

}  // namespace

void AddPsSubscribe(CLI::App& ps, CommandContext* context) {
  auto flags = std::make_shared<SubscribeFlags>();
  CLI::App* subscribe = ps.add_subcommand(
      "subscribe", "Copy the tables of a running job to a directory, and keep the copy up to date");
  subscribe->footer(
      "Writes checkpoints without optimizer state: a complete one, then what has changed since the one "
      "before. "
      "Started again with the same --out, it goes on where it was. Ends at SIGTERM or SIGINT.");
  AddServersFlags(subscribe, &flags->job);
  LocalPath(
      subscribe->add_option("--out", flags->out, "Directory of the copy; no other program may write there"))
      ->required();
  subscribe->add_option("--table", flags->tables, "A table to copy; may be repeated [all]");
  subscribe
      ->add_option("--every", flags->every_seconds,
                   "Seconds between two checkpoints, if something has changed")
      ->check(CLI::Range(0.05, 86400.0))
      ->capture_default_str();
  subscribe
      ->add_option("--deltas", flags->deltas,
                   "A reader that is fewer checkpoints behind need not read everything again")
      ->check(CLI::Range(1, 400))
      ->capture_default_str();
  subscribe->add_flag("--once", flags->once, "End as soon as the copy has what the servers have now");
  subscribe->callback([flags, context] { context->exit_code = Report("ps subscribe", Subscribe(*flags)); });
}

}  // namespace tandem::cli
