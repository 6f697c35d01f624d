// SPDX-License-Identifier: Apache-2.0
#include "worker/trainer/worker_session.h"

#include <cmath>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/command_context.h"
#include "base/logging.h"
#include "base/status.h"
#include "cluster/store/memory_store.h"
#include "ps/client/route/connect_shard.h"
#include "ps/storage/spill/spill_store.h"
#include "rpc/channel.h"
#include "rpc/transport/loopback.h"
#include "tandem/v1/durability.pb.h"

namespace tandem::worker {
namespace {

// The time that a server which has died needs until it answers again, besides the replay of its log.
constexpr absl::Duration kRestart = absl::Seconds(10);
constexpr double kReplayBytesPerSecond = 100e6;

// The longest time until a follower serves in the place of a primary that has died.
constexpr absl::Duration kTakeover = absl::Seconds(5);

// Returns an error unless the server has followers, and a call of `timeout` outlives a takeover.
absl::Status CheckFollowers(const ps::ShardConnection& connection, const std::string& server,
                            absl::Duration timeout) {
  if (!connection.followers) {
    return absl::FailedPreconditionError(
        absl::StrCat("ps.durability is 'follower', but ", server,
                     " has no followers: start the servers with `tandem run --ps N --ps-followers 1` or with "
                     "`tandem ps --followers 1` for each copy, or leave the field out"));
  }
  if (timeout >= kTakeover) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("train.timeout_seconds is ", absl::ToDoubleSeconds(timeout), ", but a follower may need ",
                   absl::ToDoubleSeconds(kTakeover),
                   " s until it has taken over from a server that died; raise the field"));
}

// Returns an error unless the server has a log, and a call of `timeout` outlives its restart.
absl::Status CheckDurable(rpc::Channel& channel, const std::string& server, absl::Duration timeout) {
  v1::DurabilityInfo info;
  const absl::Status status =
      rpc::CallProto(channel, "/tandem.v1.Durability/GetDurability", v1::GetDurabilityRequest(), &info,
                     {.timeout = timeout, .idempotent = true});
  if (!status.ok() && !absl::IsUnimplemented(status)) return Annotate(status, server);
  if (!info.enabled()) {
    return absl::FailedPreconditionError(
        absl::StrCat("ps.durability is 'log', but ", server,
                     " has no log: start the servers with `tandem run --wal-dir DIR` "
                     "or `tandem ps --wal-dir DIR`, or leave the field out"));
  }
  const absl::Duration needed =
      kRestart + absl::Seconds(static_cast<double>(info.snapshot_bytes()) / kReplayBytesPerSecond);
  if (timeout >= needed) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "train.timeout_seconds is ", absl::ToDoubleSeconds(timeout), ", but a server that comes back may need ",
      std::ceil(absl::ToDoubleSeconds(needed)), " s: ", absl::ToDoubleSeconds(kRestart),
      " for its start, and the rest to replay a log of up to ", info.snapshot_bytes(),
      " bytes; raise the field, or lower `tandem ps --wal-snapshot` (TANDEM_WAL_SNAPSHOT)"));
}

// Returns the function by which channels read the job's store, which it borrows.
std::function<absl::StatusOr<std::string>(const std::string& key, absl::Duration timeout)> ReadFrom(
    cluster::Store* store) {
  return
      [store](const std::string& key, absl::Duration timeout) { return store->GetIfPresent(key, timeout); };
}

}  // namespace

absl::StatusOr<std::unique_ptr<WorkerSession>> WorkerSession::Open(const Options& options) {
  std::unique_ptr<WorkerSession> session(new WorkerSession);
  session->stop_ = options.stop;
  const bool alone = !cluster::Environment::IsLaunched();
  const absl::Status opened = alone ? session->OpenAlone(options) : session->OpenInJob(options);
  if (opened.ok()) return session;
  if (session->member_ != nullptr) {
    // A dead process would have been named by now, because a timeout is longer than a lease.
    const absl::Status reported = session->member_->FailJob(opened.message());
    if (!reported.ok()) LogWarning(reported.message());
  }
  return opened;
}

absl::Status WorkerSession::OpenAlone(const Options& options) {
  if (options.durability != ServerDurability::kOff) {
    const bool log = options.durability == ServerDurability::kLog;
    return absl::FailedPreconditionError(absl::StrCat(
        "ps.durability is '", log ? "log" : "follower",
        "', but this process is alone and holds the tables itself: start the job with `tandem run --ps N ",
        log ? "--wal-dir DIR" : "--ps-followers 1", "`, or leave the field out"));
  }
  ps::ParameterServerOptions server;
  if (!options.spill_dir.empty()) {
    server.cold_store = std::make_shared<ps::SpillStore>(ps::SpillOptions{.directory = options.spill_dir});
  }
  local_server_ = std::make_unique<ps::ParameterServer>(server);
  auto services =
      std::make_shared<const std::vector<rpc::Service>>(std::vector<rpc::Service>{local_server_->service()});
  std::vector<std::unique_ptr<rpc::Channel>> channels;
  channels.push_back(rpc::ConnectLoopback(std::move(services)));
  TANDEM_ASSIGN_OR_RETURN(
      client_, ps::Client::Connect(std::move(channels), {.timeout = options.timeout,
                                                         .checkpoint_timeout = options.checkpoint_timeout}));
  local_store_ = std::make_unique<cluster::MemoryStore>();
  TANDEM_ASSIGN_OR_RETURN(
      group_, collectives::InitProcessGroup(local_store_.get(),
                                            {.rank = 0, .world_size = 1, .timeout = options.timeout}));
  return absl::OkStatus();
}

absl::Status WorkerSession::OpenInJob(const Options& options) {
  const absl::Duration timeout = options.timeout;
  TANDEM_ASSIGN_OR_RETURN(const cluster::Environment env, cluster::Environment::FromEnv());
  if (env.num_ps < 1) {
    return absl::InvalidArgumentError(
        "the job has no parameter server (TANDEM_NUM_PS is 0 or not set); start it with `tandem run --ps N`");
  }
  TANDEM_ASSIGN_OR_RETURN(member_, cluster::Member::Join(env, {.join_timeout = timeout,
                                                               .exit_after = absl::ZeroDuration(),
                                                               .process = options.process}));
  // Every step is one of the group, which does not take a member back. The others would wait for their
  // time-out.
  if (const char* const restarts = std::getenv("TANDEM_PROCESS_RESTARTS");
      env.world_size > 1 && restarts != nullptr && absl::string_view(restarts) != "0") {
    const absl::Status wrong = absl::FailedPreconditionError(absl::StrCat(
        env.member(), " has died and was started again alone, but the group of the ", env.world_size,
        " workers cannot take it back. Start the job with `tandem run --max-restarts N` instead of "
        "--restart ",
        env.role, "=alone: then all workers go on from the newest checkpoint"));
    // In the name of all: the failure of one does not end a job that starts it again.
    const absl::Status told =
        member_->FailJob(wrong.message(), absl::Seconds(5), /*as=*/absl::StrCat(env.role, "s"));
    if (!told.ok()) LogWarning(told.message());
    return wrong;
  }
  cluster::Store* const store = member_->store();
  std::vector<std::string> keys;
  for (int i = 0; i < env.num_ps; ++i) keys.push_back(absl::StrCat("ps/", i));
  {
    const WaitLog::Wait wait = member_->waits().Begin("the parameter servers");
    TANDEM_RETURN_IF_ERROR(Annotate(store->Wait(keys, timeout), "waiting for the parameter servers"));
  }
  std::vector<std::unique_ptr<rpc::Channel>> channels;
  for (const std::string& key : keys) {
    TANDEM_ASSIGN_OR_RETURN(const std::string address, store->Get(key, timeout));
    TANDEM_ASSIGN_OR_RETURN(ps::ShardConnection server,
                            ps::ConnectShard({.shard = static_cast<uint32_t>(channels.size()),
                                              .address = address,
                                              .read = ReadFrom(store),
                                              .timeout = timeout,
                                              .connect = {.channel = {.caller = member_->env().caller()}}}));
    if (options.durability == ServerDurability::kFollower) {
      TANDEM_RETURN_IF_ERROR(CheckFollowers(server, key, timeout));
    } else if (options.durability == ServerDurability::kLog) {
      TANDEM_RETURN_IF_ERROR(CheckDurable(*server.channel, key, timeout));
    }
    channels.push_back(std::move(server.channel));
  }
  TANDEM_ASSIGN_OR_RETURN(
      client_, ps::Client::Connect(std::move(channels), {.worker = static_cast<uint32_t>(env.rank),
                                                         .timeout = timeout,
                                                         .checkpoint_timeout = options.checkpoint_timeout}));
  // Fences off an earlier process of this worker. The epoch comes from the servers, since clocks may be set.
  TANDEM_RETURN_IF_ERROR(client_->StartPushEpoch());
  const WaitLog::Wait wait =
      member_->waits().Begin(absl::StrCat("all ", env.world_size, " workers to join their group"));
  TANDEM_ASSIGN_OR_RETURN(group_,
                          collectives::InitProcessGroup(
                              store, {.rank = env.rank, .world_size = env.world_size, .timeout = timeout}));
  member_->SetServing(true);
  return absl::OkStatus();
}

WorkerSession::~WorkerSession() = default;

int WorkerSession::Refuse(const absl::Status& reason, bool launched) {
  LogError(reason.message());
  if (member_ == nullptr) return kUsageError;
  member_->AcknowledgeEnd();
  if (!launched) {
    // Under a launcher the others would end with exit code 1 before it has seen this one's.
    const absl::Status reported = member_->FailJob(reason.message());
    if (!reported.ok()) LogWarning(reported.message());
  }
  return kUsageError;
}

int WorkerSession::Finish(const absl::Status& result) {
  if (member_ == nullptr) {
    if (!result.ok())
      LogError(absl::StrCat(result.message(), " [", absl::StatusCodeToString(result.code()), "]"));
    return result.ok() ? 0 : 1;
  }
  member_->SetServing(false);
  if (result.ok()) {
    const absl::Status left = member_->Leave(absl::Seconds(10), "training has finished");
    if (!left.ok()) LogWarning(left.message());
    return 0;
  }
  return member_->FailJobUnlessPeerDied(
      result, [this] { return stop_ != nullptr && stop_->load(std::memory_order_relaxed); });
}

}  // namespace tandem::worker
