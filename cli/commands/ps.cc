// SPDX-License-Identifier: Apache-2.0
// tandem ps: runs one parameter server of a job.

#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/local_path.h"
#include "base/logging.h"
#include "base/status.h"
#include "cli/commands/commands.h"
#include "cli/commands/left_workers.h"
#include "cli/commands/ps_moves.h"
#include "cli/commands/ps_status.h"
#include "cli/commands/ps_subscribe.h"
#include "cli/commands/shard_copy.h"
#include "cli/monitor/metrics_options.h"
#include "cli/monitor/server_metrics.h"
#include "cluster/environment.h"
#include "cluster/member.h"
#include "cluster/process.h"
#include "cluster/server.h"
#include "launcher/log_directories.h"
#include "launcher/plan/copies.h"
#include "launcher/plan/variable_options.h"
#include "ps/server/parameter_server.h"
#include "ps/storage/spill/spill_store.h"
#include "rpc/channel.h"
#include "rpc/security/epoch_gate.h"
#include "rpc/security/security_flags.h"
#include "rpc/server.h"
#include "rpc/transport/loopback.h"

namespace tandem::cli {
namespace {

struct ServeFlags {
  int index = -1;        // -1: TANDEM_PS_INDEX
  int num_servers = -1;  // -1: TANDEM_NUM_PS
  std::string listen;    // "": beside the job's store, or at the address that leads to it
  std::string advertise;
  std::string transport = "auto";
  double join_timeout_seconds = 60;
  double lease_seconds = -1;  // negative: that of the environment
  int threads = 0;            // as rpc::ServerOptions::threads
  MetricsOptions metrics;
  std::string spill_dir;
  uint64_t spill_cache = uint64_t{64} << 20;
  uint64_t max_memory = 0;
  std::string checkpoint_root;
  std::string wal_dir;
  std::string wal_sync = "always";
  uint64_t wal_snapshot = ps::DurabilityOptions().snapshot_bytes;
  bool accept_loss = false;
  int copy = -1;       // -1: TANDEM_PS_COPY
  int followers = -1;  // -1: TANDEM_PS_FOLLOWERS
  int min_copies = 1;
  bool fresh = false;
  bool reflection = false;
  // Limits of the memory for requests and responses in flight. The defaults are those of the libraries.
  uint64_t max_parked = ps::ParameterServerOptions().max_parked_bytes;
  uint64_t max_held = rpc::ServerOptions().max_held_request_bytes;
  uint64_t max_unsent = rpc::ServerOptions().max_unsent_response_bytes;
  size_t max_connections = 0;  // as rpc::ServerOptions::max_connections
};

absl::StatusOr<cluster::Environment> ServerEnvironment(const ServeFlags& flags) {
  return cluster::Environment::FromLookup([&](absl::string_view name) -> absl::optional<std::string> {
    if (name == "TANDEM_ROLE") return "ps";
    if (name == "TANDEM_PS_INDEX" && flags.index >= 0) return absl::StrCat(flags.index);
    if (name == "TANDEM_NUM_PS" && flags.num_servers >= 0) return absl::StrCat(flags.num_servers);
    if (name == "TANDEM_PS_COPY" && flags.copy >= 0) return absl::StrCat(flags.copy);
    if (name == "TANDEM_PS_FOLLOWERS" && flags.followers >= 0) return absl::StrCat(flags.followers);
    if (name == cluster::kLeaseVariable && flags.lease_seconds >= 0) return absl::StrCat(flags.lease_seconds);
    const char* value = std::getenv(std::string(name).c_str());
    if (value == nullptr) return name == "WORLD_SIZE" ? absl::make_optional<std::string>("1") : absl::nullopt;
    return value;
  });
}

// Returns a function that calls the server's statistics methods within the process, for metrics. `copy`:
// nullptr if the server has no followers.
std::function<std::string()> MetricsOf(ps::ParameterServer& server, const ShardCopy* copy) {
  const std::shared_ptr<rpc::Channel> self =
      rpc::ConnectLoopback(std::make_shared<const std::vector<rpc::Service>>(
          std::vector<rpc::Service>{server.service(), server.durability_service()}));
  return [self, copy] {
    const rpc::CallOptions options{.timeout = absl::Seconds(10)};
    ServerMetrics figures;
    tandem::v1::ListTablesResponse tables;
    absl::Status status = rpc::CallProto(*self, "/tandem.v1.ParameterServer/GetServerStatistics",
                                         tandem::v1::GetServerStatisticsRequest(), &figures.server, options);
    status.Update(rpc::CallProto(*self, "/tandem.v1.Durability/GetDurability",
                                 tandem::v1::GetDurabilityRequest(), &figures.durability, options));
    status.Update(rpc::CallProto(*self, "/tandem.v1.ParameterServer/ListTables",
                                 tandem::v1::ListTablesRequest(), &tables, options));
    if (!status.ok()) LogWarning(absl::StrCat("metrics: ", status.message()));
    if (copy != nullptr) figures.failover = copy->Status();
    figures.tables.assign(tables.tables().begin(), tables.tables().end());
    return ServerMetricsText(figures);
  };
}

// Returns the gate that decides which rounds of the job the server serves.
//
// - If the launcher starts the server anew in each round, its tables belong to one round. Calls of an earlier
//   round's worker that is still alive are refused, and so are calls of a later round's worker, because these
//   tables are about to be lost.
// - In a job that re-forms (TANDEM_AGENT), or without a launcher, the server outlives rounds. After the first
//   call of a new round, calls of earlier rounds are refused.
//
// A worker that was restarted alone belongs to the same round; pushes of its earlier process are refused by
// their push epoch.
std::shared_ptr<rpc::EpochGate> Gate(const cluster::Environment& env) {
  const bool outlives = env.epoch == 0 || std::getenv("TANDEM_AGENT") != nullptr;
  return std::make_shared<rpc::EpochGate>(
      *env.key, env.caller(),
      outlives ? rpc::EpochGate::Kind::kOutlivesRounds : rpc::EpochGate::Kind::kSingleRound);
}

// Opens the store for rows that do not fit into memory. Returns nullptr if no directory is given for it.
absl::StatusOr<std::shared_ptr<ps::ColdStore>> OpenSpillStore(const ServeFlags& flags) {
  // A directory from the launcher is created when a table needs it. One from the user is created at once, so
  // that the user sees an error at the start.
  const char* const launchers = std::getenv("TANDEM_SPILL_DIR");
  if (flags.spill_dir.empty() && launchers == nullptr) return std::shared_ptr<ps::ColdStore>();
  auto store = std::make_shared<ps::SpillStore>(ps::SpillOptions{
      .directory = flags.spill_dir.empty() ? launchers : flags.spill_dir, .cache_bytes = flags.spill_cache});
  if (!flags.spill_dir.empty()) TANDEM_RETURN_IF_ERROR(store->Claim());
  return std::shared_ptr<ps::ColdStore>(std::move(store));
}

// A process that is stopped alone looks for a follower in sync for this long. The hand-over comes on top.
constexpr absl::Duration kLeaveTimeout = absl::Seconds(1);

// Ends the server's part of its job in order. Returns the exit code of a server that has ended well.
absl::StatusOr<int> EndServing(const cluster::End& end, cluster::Member& member, ShardCopy* copy) {
  using Cause = cluster::End::Cause;
  // When the job has ended, the store may end before this process. Then the notices are not needed.
  constexpr absl::Duration kNotice = absl::Seconds(2);
  bool ended_well = end.cause == Cause::kJobSucceeded;
  if (absl::IsDataLoss(end.failure) && copy != nullptr) {
    // No other copy can take this one's place, and no server that is started again has the tables. But if the
    // job had ended before, the others were right to go, and this changes nothing.
    const absl::Status told = member.FailJob(end.failure.message(), kNotice);
    if (!told.ok()) LogWarning(told.message());
    const std::optional<cluster::JobState> state = member.AwaitJobEnd(kNotice);
    ended_well = state.has_value() && !state->failed;
    if (state.has_value() && state->failed)
      return absl::AbortedError(absl::StrCat("the job failed: ", state->reason));
  }
  const absl::Status left = member.Leave(kNotice);
  if (!left.ok()) LogDebug(left.message());
  if (end.cause == Cause::kJobFailed || end.cause == Cause::kStoreLost) return end.failure;
  const bool drained = copy != nullptr && copy->left();
  if (!ended_well && !drained && end.cause != Cause::kSignal) {
    // The process has said to whom it has handed over. It is no failure, but it shall come back.
    if (copy != nullptr && copy->handed_over()) return launcher::kExitToComeBack;
    return end.failure;
  }
  LogInfo(drained && end.cause != Cause::kSignal ? "left the job, as asked" : end.reason);
  return 0;
}

// Returns InvalidArgument for flags that contradict each other or the job, Unimplemented for those that this
// build lacks.
absl::Status CheckFlags(const ServeFlags& flags, const cluster::Environment& env) {
  TANDEM_RETURN_IF_ERROR(
      launcher::CheckFollowerFlags("--", env.ps_followers, flags.min_copies, !flags.wal_dir.empty()));
  if (flags.metrics.port >= 0) TANDEM_RETURN_IF_ERROR(CheckServerMetrics());
  if (env.num_ps <= static_cast<int>(ps::kDefaultBuckets)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a job has at most ", ps::kDefaultBuckets, " servers, not ", env.num_ps));
}

ps::ParameterServerOptions ServerOptionsOf(const ServeFlags& flags, cluster::Member* member,
                                           const std::shared_ptr<rpc::EpochGate>& gate) {
  const cluster::Environment& env = member->env();
  return {
      .index = static_cast<uint32_t>(env.ps_index),
      .num_servers = static_cast<uint32_t>(env.num_ps),
      .max_parked_bytes = flags.max_parked,
      .max_memory_bytes = flags.max_memory,
      .checkpoint_root = flags.checkpoint_root,
      .gate = gate,
      .job = [run_id = env.run_id, gate] { return rpc::Caller{.run_id = run_id, .epoch = gate->epoch()}; },
      .first_free_rank = env.epoch > 0 ? static_cast<uint32_t>(env.world_size) : 0,
      .durability = {.directory = flags.wal_dir,
                     .sync = flags.wal_sync == "always",
                     .accept_loss = flags.accept_loss,
                     .snapshot_bytes = flags.wal_snapshot,
                     .on_failure = [member](const absl::Status& why) { member->Fail(why); }},
      .failover = env.ps_followers > 0};
}

absl::StatusOr<cluster::ServerOptions> ListeningOptionsOf(const ServeFlags& flags, bool followers) {
  TANDEM_ASSIGN_OR_RETURN(std::optional<cluster::HttpAccess> metrics, ReadMetricsAccess(flags.metrics));
  // The launcher of a copy waits until it takes part, that of a server with a log until it has replayed it.
  const char* const variable = std::getenv("TANDEM_SERVING_DIR");
  const std::string directory = !followers ? flags.wal_dir : variable == nullptr ? "" : variable;
  // The address at which others arrive is another one than that of the job's store.
  const bool forwarded = flags.listen.empty() && !flags.advertise.empty();
  return cluster::ServerOptions{
      .address = {.listen = forwarded ? "127.0.0.1:0" : flags.listen, .advertise = flags.advertise},
      .rpc = {.transport = flags.transport,
              .threads = flags.threads,
              .max_unsent_response_bytes = flags.max_unsent,
              .max_held_request_bytes = flags.max_held,
              .max_connections = flags.max_connections,
              .reflection = flags.reflection},
      // A copy tells the store its address when it is the primary.
      .registration = followers ? cluster::ServerOptions::Registration::kNone
                                : cluster::ServerOptions::Registration::kMember,
      .ready = !followers,
      .serving_file = directory.empty() ? "" : launcher::ServingFile(directory),
      .metrics = {.access = std::move(metrics)}};
}

// Returns the exit code of a server that has ended well.
absl::StatusOr<int> Serve(const ServeFlags& flags) {
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<cluster::Process> process,
                          cluster::Process::Start({.only_launcher = true}));
  TANDEM_ASSIGN_OR_RETURN(const cluster::Environment given, ServerEnvironment(flags));
  SetLogName(given.member());
  TANDEM_RETURN_IF_ERROR(CheckFlags(flags, given));
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<ps::ColdStore> cold_store, OpenSpillStore(flags));
  TANDEM_ASSIGN_OR_RETURN(
      const std::unique_ptr<cluster::Member> member,
      cluster::Member::Join(
          given, {.join_timeout = absl::Seconds(flags.join_timeout_seconds), .process = process.get()}));
  member->EndOnSignals();
  const cluster::Environment& env = member->env();
  const std::shared_ptr<rpc::EpochGate> gate = Gate(env);
  ps::ParameterServerOptions options = ServerOptionsOf(flags, member.get(), gate);
  options.cold_store = std::move(cold_store);
  ps::ParameterServer server(options);
  // Before the server listens: until then workers cannot connect, and repeat their calls. The heartbeats have
  // begun, since a long log takes longer than a lease.
  if (!flags.wal_dir.empty()) member->status()->SetState("replaying its log");
  TANDEM_RETURN_IF_ERROR(server.Recover());
  std::vector<rpc::Service> services = {server.service(), server.durability_service(),
                                        server.subscriptions_service()};
  std::unique_ptr<ShardCopy> copy;
  if (env.ps_followers > 0) {
    copy = std::make_unique<ShardCopy>(
        ShardCopy::Options{.member = member.get(),
                           .server = &server,
                           .min_copies = flags.min_copies,
                           .fresh = flags.fresh,
                           .on_end = [&member](const absl::Status& why) { member->Fail(why); }});
    services.push_back(copy->service());
  }
  const LeftWorkers left_workers(&server, member->store_channel());
  TANDEM_ASSIGN_OR_RETURN(cluster::ServerOptions serving, ListeningOptionsOf(flags, copy != nullptr));
  serving.gate = gate;
  serving.metrics.text = MetricsOf(server, copy.get());
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<cluster::Server> listening,
                          cluster::Server::Start(member.get(), std::move(serving), std::move(services)));
  LogInfo(absl::StrCat(
      "serving at ", listening->address(),
      listening->bound() == listening->address() ? "" : absl::StrCat(" (bound to ", listening->bound(), ")"),
      copy != nullptr ? absl::StrCat(", copy ", env.ps_copy, " of shard ") : ", server ", env.ps_index,
      " of ", env.num_ps));
  std::unique_ptr<cluster::JobMonitor::Registration> registration;
  if (copy != nullptr) {
    copy->Start(listening->address(), [&listening] { (void)listening->SetReady(); });
    registration = member->OnStoreLost([&copy] { return copy->RegisterAgain(); });
  }

  const cluster::End end = *member->AwaitEnd();
  // A launcher ends a server only when the job is over. Others may stop this one alone: no call fails, and
  // none waits until the others find out.
  if (end.cause == cluster::End::Cause::kSignal && copy != nullptr && !process->launched()) {
    member->status()->SetState("leaving");
    if (const absl::Status left = copy->Leave(kLeaveTimeout); !left.ok()) LogInfo(left.message());
  }
  member->SetServing(false);
  if (copy != nullptr) copy->Stop();
  server.Stop();
  listening->Drain();
  return EndServing(end, *member, copy.get());
}

}  // namespace

void AddPs(CLI::App& app, CommandContext* context) {
  auto flags = std::make_shared<ServeFlags>();
  CLI::App* ps =
      app.add_subcommand("ps", "Serve a shard of a job's tables; `tandem run --ps N` starts these by itself");
  ps->footer(
      "The job's store is at TANDEM_STORE, else at MASTER_ADDR:MASTER_PORT. Ends with 0 when the job has "
      "ended well or on SIGTERM (of `tandem run`, if that has started it), and with an\n"
      "error when the job has failed or its store is gone. A server with followers hands over on SIGTERM; it "
      "ends with 0 after `tandem ps drain`, and with 75, to be\n"
      "started again as a follower, if it has handed over and cannot stay (`tandem ps move`).");
  ps->add_flag("--fresh", flags->fresh,
               "With followers: this copy may begin its shard empty if the job's store has no placement of "
               "it. `tandem run` says so at the start of a round. Other copies wait for a primary");
  ps->add_option("--index", flags->index, "Which server this is, from 0 [TANDEM_PS_INDEX]")
      ->check(CLI::NonNegativeNumber);
  ps->add_option("--num-servers", flags->num_servers, "How many there are [TANDEM_NUM_PS]")
      ->check(CLI::PositiveNumber);
  rpc::AddSecurityFlags(ps);
  ps->add_option(
      "--listen", flags->listen,
      "host:port to bind; port 0: the kernel picks [a unix socket if the job's store has one, else "
      "the address that leads to the store]");
  ps->add_option("--advertise", flags->advertise,
                 "HOST or HOST:PORT under which workers reach it [that of --listen]");
  ps->add_option("--transport", flags->transport,
                 "auto: gRPC, and shared memory with workers of this host; grpc: gRPC only")
      ->check(CLI::IsMember({"auto", "grpc"}))
      ->capture_default_str();
  ps->add_option("--join-timeout", flags->join_timeout_seconds, "Seconds to wait for the job's store")
      ->check(CLI::Range(0.1, 86400.0))
      ->capture_default_str();
  ps->add_option("--lease", flags->lease_seconds,
                 "Seconds of silence that count as death [TANDEM_LEASE, or 10]")
      ->check(CLI::Range(cluster::kShortestLeaseSeconds, cluster::kLongestLeaseSeconds));
  LocalPath(ps->add_option(
      "--spill-dir", flags->spill_dir,
      "Where cold rows of tables with `spill` go: a directory of this server's own, on a local "
      "disk. What a killed server left there is removed at the start, the rest at the end [none: "
      "such tables are refused]"));
  ps->add_option("--spill-cache", flags->spill_cache,
                 "Memory for rows on their way to and from that disk, in bytes or as 64MiB")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->check(CLI::Range(uint64_t{1} << 20, uint64_t{1} << 40))
      ->default_str("64MiB");
  ps->add_flag("--reflection", flags->reflection,
               "Describe all methods and messages to gRPC clients that ask, such as grpcurl [off]");
  // The variables are for `tandem run`, which passes its environment on to all servers of its job.
  auto variables = std::make_shared<launcher::VariableOptions>();
  variables->Add(
      ps->add_option(
            "--max-memory", flags->max_memory,
            "Memory of tables, in bytes or as 64GiB: beyond it no table and no row is created [no limit]")
          ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
          ->check(CLI::Range(uint64_t{1} << 20, uint64_t{1} << 50)),
      "TANDEM_PS_MAX_MEMORY");
  variables->Add(
      LocalPath(ps->add_option(
          "--checkpoint-root", flags->checkpoint_root,
          "Directory below which checkpoints are written and read, whatever a client asks for [any]")),
      "TANDEM_CHECKPOINT_ROOT");
  variables->Add(LocalPath(ps->add_option(
                     "--wal-dir", flags->wal_dir,
                     "Log every push to this directory of the server's own, on a local disk, before it is "
                     "acknowledged; a server that is started again with it goes on where it was [no log]")),
                 "TANDEM_WAL_DIR");
  variables->Add(
      ps->add_option("--wal-sync", flags->wal_sync,
                     "always: a push is acknowledged when the disk has it; never: when the kernel has it, so "
                     "that it survives the server and not the machine")
          ->check(CLI::IsMember({"always", "never"}))
          ->capture_default_str(),
      "TANDEM_WAL_SYNC");
  variables->Add(ps->add_option("--wal-snapshot", flags->wal_snapshot,
                                "Bytes of log after which a snapshot of the tables takes its place")
                     ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
                     ->check(CLI::Range(uint64_t{1} << 16, uint64_t{1} << 40))
                     ->default_str("1GiB"),
                 "TANDEM_WAL_SNAPSHOT");
  ps->add_option(
        "--followers", flags->followers,
        "Followers of each server: processes with the same --index and another --copy, which hold its tables "
        "and take over when it dies [TANDEM_PS_FOLLOWERS, or 0]")
      ->check(CLI::Range(0, cluster::kMostFollowers));
  ps->add_option("--copy", flags->copy,
                 "Which copy of the shard this process is, from 0 to --followers [TANDEM_PS_COPY, or 0]")
      ->check(CLI::Range(0, cluster::kMostFollowers));
  variables->Add(
      ps->add_option("--min-copies", flags->min_copies,
                     "Copies, the primary's included, that must have a push before it is acknowledged")
          ->check(CLI::Range(1, cluster::kMostFollowers + 1))
          ->capture_default_str(),
      "TANDEM_PS_MIN_COPIES");
  ps->add_flag("--accept-loss", flags->accept_loss,
               "Start although the log is damaged, or was not synced before the machine was started again: "
               "pushes that were acknowledged may be lost [off]");
  variables->Add(
      ps->add_option("--threads", flags->threads,
                     "Threads that answer over gRPC, and at most as many over shared memory; 0: half of the "
                     "processors, at least 2 and at most 8, and one for each processor")
          ->check(CLI::Range(0, 1024))
          ->capture_default_str(),
      "TANDEM_PS_THREADS");
  const auto bound = [&](const std::string& name, uint64_t* bytes, const char* variable, const char* what,
                         const char* otherwise) {
    variables->Add(ps->add_option(name, *bytes, what)
                       ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
                       ->check(CLI::Range(uint64_t{1} << 20, uint64_t{1} << 40))
                       ->default_str(otherwise),
                   variable);
  };
  bound("--max-parked", &flags->max_parked, "TANDEM_PS_MAX_PARKED",
        "Memory of pulls and pushes that wait for other workers; more are refused", "2GiB");
  bound("--max-held", &flags->max_held, "TANDEM_PS_MAX_HELD",
        "Memory of one connection's unanswered requests; more are refused", "1GiB");
  bound(
      "--max-unsent", &flags->max_unsent, "TANDEM_PS_MAX_UNSENT",
      "Memory of answers that a connection's client does not read; none of its requests are taken meanwhile",
      "64MiB");
  variables->Add(
      ps->add_option("--max-connections", flags->max_connections,
                     "Connections over gRPC at once; more are refused. In any case 3/4 of `ulimit -n`")
          ->check(CLI::Range(1, 1 << 20))
          ->default_str("4096"),
      "TANDEM_PS_MAX_CONNECTIONS");
  AddMetricsFlags(ps, &flags->metrics);
  AddPsStatus(*ps, context);
  AddPsMoves(*ps, context);
  AddPsSubscribe(*ps, context);
  ps->callback([ps, flags, variables, context] {
    if (!ps->get_subcommands().empty()) return;
    (void)variables->Read();
    const absl::StatusOr<int> served = Serve(*flags);
    context->exit_code = served.ok() ? *served : Report("ps", served.status());
  });
}

}  // namespace tandem::cli
