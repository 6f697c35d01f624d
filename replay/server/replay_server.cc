// SPDX-License-Identifier: Apache-2.0
#include "replay/server/replay_server.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "base/counted.h"
#include "base/logging.h"
#include "base/random.h"
#include "base/status.h"
#include "replay/checkpoint/checkpoint.h"
#include "replay/server/insert_handler.h"
#include "replay/server/memory_meter.h"
#include "replay/server/parked_calls.h"
#include "replay/server/sample_handler.h"
#include "replay/server/served_table.h"
#include "replay/wire/messages.h"
#include "rpc/deferred_calls.h"
#include "rpc/transport/timer_queue.h"

namespace tandem::replay {
namespace {

constexpr uint32_t kMaxPeek = 1000;
constexpr size_t kMaxActorName = 256;
constexpr absl::Duration kLongestTick = absl::Milliseconds(250);

// Returns a number that no earlier or later server has used.
uint64_t NewIncarnation() {
  return Mix64(static_cast<uint64_t>(absl::ToUnixNanos(absl::Now())),
               reinterpret_cast<uintptr_t>(&kMaxPeek)) |
         1;
}

class ReplayServerImpl : public ReplayServer {
 public:
  explicit ReplayServerImpl(const ReplayServerOptions& options)
      : options_(options),
        incarnation_(NewIncarnation()),
        started_(options.clock->Now()),
        tables_(options.clock, incarnation_ >> 32),
        parked_(options.clock, options.max_wait, options.max_parked_bytes),
        inserts_({.server = options.name,
                  .incarnation = incarnation_,
                  .max_memory_bytes = options.max_memory_bytes,
                  .memory_patience = options.memory_patience,
                  .answers_keep_items = [this] { return samples_.KeepsItems(); },
                  .max_item_bytes = options.max_message_bytes / 2,
                  .clock = options.clock},
                 &tables_, &parked_, &memory_),
        samples_(
            {.server = options.name, .max_message_bytes = options.max_message_bytes, .clock = options.clock},
            &tables_, &parked_),
        logged_waits_(started_),
        ticks_(options.clock) {}
  ~ReplayServerImpl() override { Stop(); }

  // Restores the newest checkpoint, if there is one.
  absl::Status Restore();
  void StartCheckpoints();
  // Runs Table::Tick of all tables at their periods, and LogWaits.
  void ScheduleTick();

  rpc::Service service() override;
  absl::StatusOr<v1::ReplaySaveCheckpointResponse> SaveCheckpoint() override;
  v1::ListReplayTablesResponse State() const override;
  absl::Status CreateTable(const v1::ReplayTableOptions& options) override;
  void Stop() override;

 private:
  // How far a table had come.
  struct Progress {
    uint64_t inserts = 0, samples = 0, admitted = 0, commits = 0;
    friend bool operator==(const Progress&, const Progress&) = default;
  };

  // Logs why the calls of tables wait that stand still since the last time. Runs on the thread of ticks_.
  void LogWaits();
  v1::ReplayTableInfo InfoOf(const ServedTable& served) const;
  void WriteRegularCheckpoint();

  absl::StatusOr<v1::CreateReplayTableResponse> Create(const v1::CreateReplayTableRequest& request);
  absl::StatusOr<v1::ListReplayTablesResponse> List(const v1::ListReplayTablesRequest& request) const;
  absl::StatusOr<v1::ReplayUpdatePrioritiesResponse> UpdatePriorities(
      const v1::ReplayUpdatePrioritiesRequest& request);
  void Admit(const std::shared_ptr<rpc::ServerCall>& call, const v1::ReplayAdmitRequest& request,
             const rpc::Reply<v1::ReplayAdmitResponse>& reply);
  absl::StatusOr<v1::ReplayRenewTicketsResponse> RenewTickets(const v1::ReplayRenewTicketsRequest& request);
  absl::StatusOr<v1::ReplayCommitResponse> Commit(const v1::ReplayCommitRequest& request);
  absl::StatusOr<v1::ReplaySetLimitsResponse> SetLimits(const v1::ReplaySetLimitsRequest& request);
  absl::StatusOr<v1::ReplayResetResponse> Reset(const v1::ReplayResetRequest& request);
  absl::StatusOr<v1::ReplayExplainResponse> Explain(const v1::ReplayExplainRequest& request) const;
  absl::StatusOr<v1::ReplayPeekResponse> Peek(const v1::ReplayPeekRequest& request) const;

  const ReplayServerOptions options_;
  const uint64_t incarnation_;
  const absl::Time started_;
  MemoryMeter memory_;
  ServedTables tables_;
  ParkedCalls parked_;
  InsertHandler inserts_;
  SampleHandler samples_;
  absl::Mutex checkpoint_mutex_;  // held while a checkpoint is written
  rpc::TimerQueue background_;    // writes checkpoints
  // The following are of the thread of ticks_, which is destroyed first.
  absl::Time logged_waits_;
  std::map<std::string, Progress> progress_;  // of the tables with calls that waited then
  rpc::DeferredCalls ticks_;
};

// Returns "3 tables, 1000 items, 12345 bytes".
std::string Summary(size_t tables, uint64_t items, uint64_t bytes) {
  return absl::StrCat(Counted(static_cast<int64_t>(tables), "table"), ", ",
                      Counted(static_cast<int64_t>(items), "item"), ", ", bytes, " bytes");
}

absl::Status ReplayServerImpl::Restore() {
  if (options_.checkpoint_directory.empty()) return absl::OkStatus();
  const absl::StatusOr<std::string> latest = LatestCheckpoint(options_.checkpoint_directory);
  if (absl::IsNotFound(latest.status())) return absl::OkStatus();
  TANDEM_RETURN_IF_ERROR(latest);
  const auto share = [this](std::unique_ptr<const Chunk> chunk) { return memory_.Count(std::move(chunk)); };
  TANDEM_ASSIGN_OR_RETURN(std::vector<SavedTable> saved, ReadCheckpoint(*latest, share));
  uint64_t items = 0;
  for (SavedTable& table : saved) {
    items += table.snapshot.items.size();
    auto served = std::make_shared<ServedTable>();
    absl::StatusOr<std::shared_ptr<Table>> restored =
        Table::Restore(std::move(table.snapshot), options_.clock);
    if (!restored.ok()) return Annotate(restored.status(), *latest);
    served->table = *std::move(restored);
    served->fence.Restore({table.fences.begin(), table.fences.end()}, table.lost_items);
    served->table->set_find_weights(options_.find_weights);
    TANDEM_RETURN_IF_ERROR(Annotate(tables_.Add(std::move(served)), *latest));
  }
  LogInfo(absl::StrCat("restored ", *latest, ": ", Summary(saved.size(), items, memory_.bytes())));
  return absl::OkStatus();
}

void ReplayServerImpl::StartCheckpoints() {
  if (options_.checkpoint_directory.empty() || options_.checkpoint_every == absl::InfiniteDuration()) return;
  background_.Schedule(options_.clock->Now() + options_.checkpoint_every,
                       [this] { WriteRegularCheckpoint(); });
}

void ReplayServerImpl::WriteRegularCheckpoint() {
  const absl::StatusOr<v1::ReplaySaveCheckpointResponse> written = SaveCheckpoint();
  if (!written.ok()) LogWarning(absl::StrCat("no checkpoint was written: ", written.status().message()));
  StartCheckpoints();
}

absl::StatusOr<v1::ReplaySaveCheckpointResponse> ReplayServerImpl::SaveCheckpoint() {
  if (options_.checkpoint_directory.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(options_.name, " has no directory for checkpoints (--checkpoint-dir)"));
  }
  absl::MutexLock lock(&checkpoint_mutex_);
  const absl::Time begin = MonotonicNow();
  std::vector<SavedTable> saved;
  for (const std::shared_ptr<ServedTable>& served : tables_.All()) {
    SavedTable& table = saved.emplace_back();
    table.snapshot = served->table->Snapshot([&] {
      table.fences = served->fence.Save();
      table.lost_items = served->fence.lost_items();
    });
  }
  TANDEM_ASSIGN_OR_RETURN(const WrittenCheckpoint written,
                          WriteCheckpoint(options_.checkpoint_directory, saved));
  v1::ReplaySaveCheckpointResponse response;
  response.set_directory(written.directory);
  response.set_items(written.items);
  response.set_bytes(written.bytes);
  response.set_seconds(absl::ToDoubleSeconds(MonotonicNow() - begin));
  return response;
}

void ReplayServerImpl::Stop() {
  background_.Stop();
  ticks_.Stop();
  // Unavailable: clients repeat their calls, at a server that starts in place of this one.
  tables_.Stop(absl::UnavailableError(absl::StrCat(options_.name, " stops")));
  inserts_.Stop();
  parked_.Stop();
}

rpc::Service ReplayServerImpl::service() {
  rpc::Service service;
  service.name = "tandem.v1.Replay";
  service.methods = {
      {"CreateTable", rpc::Right::kTrain,
       rpc::ProtoHandler<v1::CreateReplayTableRequest, v1::CreateReplayTableResponse>(
           [this](const auto& request) { return Create(request); })},
      {"ListTables", rpc::Right::kObserve,
       rpc::ProtoHandler<v1::ListReplayTablesRequest, v1::ListReplayTablesResponse>(
           [this](const auto& request) { return List(request); })},
      {"Insert", rpc::Right::kAct,
       [this](std::shared_ptr<rpc::ServerCall> call) { inserts_.Handle(std::move(call)); }},
      {"Sample", rpc::Right::kTrain,
       [this](std::shared_ptr<rpc::ServerCall> call) { samples_.Handle(std::move(call)); }},
      {"UpdatePriorities", rpc::Right::kTrain,
       rpc::ProtoHandler<v1::ReplayUpdatePrioritiesRequest, v1::ReplayUpdatePrioritiesResponse>(
           [this](const auto& request) { return UpdatePriorities(request); })},
      {"Admit", rpc::Right::kAct,
       rpc::AsyncProtoHandler<v1::ReplayAdmitRequest, v1::ReplayAdmitResponse>(
           [this](std::shared_ptr<rpc::ServerCall> call, const v1::ReplayAdmitRequest& request,
                  const rpc::Reply<v1::ReplayAdmitResponse>& reply) { Admit(call, request, reply); })},
      {"RenewTickets", rpc::Right::kAct,
       rpc::ProtoHandler<v1::ReplayRenewTicketsRequest, v1::ReplayRenewTicketsResponse>(
           [this](const auto& request) { return RenewTickets(request); })},
      {"Commit", rpc::Right::kAct,
       rpc::ProtoHandler<v1::ReplayCommitRequest, v1::ReplayCommitResponse>(
           [this](const auto& request) { return Commit(request); })},
      {"SetLimits", rpc::Right::kTrain,
       rpc::ProtoHandler<v1::ReplaySetLimitsRequest, v1::ReplaySetLimitsResponse>(
           [this](const auto& request) { return SetLimits(request); })},
      {"Reset", rpc::Right::kAdmin,
       rpc::ProtoHandler<v1::ReplayResetRequest, v1::ReplayResetResponse>(
           [this](const auto& request) { return Reset(request); })},
      {"Explain", rpc::Right::kObserve,
       rpc::ProtoHandler<v1::ReplayExplainRequest, v1::ReplayExplainResponse>(
           [this](const auto& request) { return Explain(request); })},
      {"Peek", rpc::Right::kRead,
       rpc::ProtoHandler<v1::ReplayPeekRequest, v1::ReplayPeekResponse>(
           [this](const auto& request) { return Peek(request); })},
      {"SaveCheckpoint", rpc::Right::kAdmin,
       rpc::AsyncProtoHandler<v1::ReplaySaveCheckpointRequest, v1::ReplaySaveCheckpointResponse>(
           [this](std::shared_ptr<rpc::ServerCall>, const v1::ReplaySaveCheckpointRequest&,
                  const rpc::Reply<v1::ReplaySaveCheckpointResponse>& reply) {
             background_.RunSoon([this, reply] { reply(SaveCheckpoint()); });
           })},
  };
  return service;
}

absl::Status ReplayServerImpl::CreateTable(const v1::ReplayTableOptions& message) {
  TANDEM_ASSIGN_OR_RETURN(const TableOptions options, FromProto(message));
  TANDEM_RETURN_IF_ERROR(tables_.Create(options));
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<ServedTable> served, tables_.Find(options.name));
  served->table->set_find_weights(options_.find_weights);
  return absl::OkStatus();
}

absl::StatusOr<v1::CreateReplayTableResponse> ReplayServerImpl::Create(
    const v1::CreateReplayTableRequest& request) {
  TANDEM_RETURN_IF_ERROR(Annotate(CreateTable(request.options()), options_.name));
  return v1::CreateReplayTableResponse();
}

v1::ReplayTableInfo ReplayServerImpl::InfoOf(const ServedTable& served) const {
  v1::ReplayTableInfo info = ToProto(served.table->Info());
  info.set_lost_items(served.fence.lost_items());
  info.set_repeated_inserts(served.fence.repeated());
  return info;
}

v1::ListReplayTablesResponse ReplayServerImpl::State() const {
  v1::ListReplayTablesResponse response;
  response.set_server_incarnation(incarnation_);
  response.set_chunk_bytes(memory_.bytes());
  response.set_max_memory_bytes(options_.max_memory_bytes);
  response.set_parked_calls(parked_.calls());
  response.set_parked_bytes(parked_.bytes());
  response.set_memory_waits(inserts_.memory_waits());
  response.set_memory_refusals(inserts_.memory_refusals());
  response.set_uptime_s(absl::ToDoubleSeconds(options_.clock->Now() - started_));
  for (const std::shared_ptr<ServedTable>& served : tables_.All()) *response.add_tables() = InfoOf(*served);
  return response;
}

absl::StatusOr<v1::ListReplayTablesResponse> ReplayServerImpl::List(
    const v1::ListReplayTablesRequest& request) const {
  v1::ListReplayTablesResponse response = State();
  if (request.table().empty()) return response;
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<ServedTable> served, tables_.Find(request.table()));
  response.clear_tables();
  *response.add_tables() = InfoOf(*served);
  return response;
}

absl::StatusOr<v1::ReplayUpdatePrioritiesResponse> ReplayServerImpl::UpdatePriorities(
    const v1::ReplayUpdatePrioritiesRequest& request) {
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<ServedTable> served, tables_.Find(request.table()));
  TANDEM_ASSIGN_OR_RETURN(const uint64_t changed,
                          served->table->UpdatePriorities(request.keys(), request.priorities()));
  v1::ReplayUpdatePrioritiesResponse response;
  response.set_changed(changed);
  return response;
}

void ReplayServerImpl::Admit(const std::shared_ptr<rpc::ServerCall>& call,
                             const v1::ReplayAdmitRequest& request,
                             const rpc::Reply<v1::ReplayAdmitResponse>& reply) {
  const absl::StatusOr<std::shared_ptr<ServedTable>> served = tables_.Find(request.table());
  if (!served.ok()) return reply(served.status());
  if (request.actor().size() > kMaxActorName) {
    return reply(absl::InvalidArgumentError(absl::StrCat("an actor's name has ", request.actor().size(),
                                                         " bytes; it must have at most ", kMaxActorName)));
  }
  const std::shared_ptr<Table> table = (*served)->table;
  const std::shared_ptr<ParkedCalls::Entry> entry = parked_.NewEntry();
  const uint64_t waiting =
      table->StartAdmit({.actor = request.actor(),
                         .count = request.count(),
                         .incarnation = request.incarnation(),
                         .sequence = request.sequence()},
                        [entry, reply](absl::StatusOr<std::vector<Ticket>> tickets) {
                          entry->Over();
                          if (!tickets.ok()) return reply(tickets.status());
                          v1::ReplayAdmitResponse response;
                          for (const Ticket& ticket : *tickets) response.add_tickets(ticket.id);
                          response.set_min_version(tickets->front().min_version);
                          response.set_epoch(tickets->front().epoch);
                          response.set_lease_seconds(absl::ToDoubleSeconds(tickets->front().lease));
                          reply(std::move(response));
                        });
  if (waiting == 0) return;
  if (request.no_wait()) return table->Expire(waiting);
  if (!parked_.Park(entry, *call, call->request().size(), [table, waiting] { table->Expire(waiting); })) {
    return table->Cancel(waiting, absl::UnavailableError(absl::StrCat(
                                      options_.name, ": calls that wait hold ", parked_.bytes(),
                                      " bytes and may hold ", parked_.max_bytes(), " (--max-parked)")));
  }
  call->OnCancel([table, waiting] { table->Cancel(waiting, absl::CancelledError("the client is gone")); });
}

absl::StatusOr<v1::ReplayRenewTicketsResponse> ReplayServerImpl::RenewTickets(
    const v1::ReplayRenewTicketsRequest& request) {
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<ServedTable> served, tables_.Find(request.table()));
  v1::ReplayRenewTicketsResponse response;
  response.set_in_use(request.end() ? served->table->ReturnTickets(request.tickets())
                                    : served->table->Renew(request.tickets()));
  return response;
}

absl::StatusOr<v1::ReplayCommitResponse> ReplayServerImpl::Commit(const v1::ReplayCommitRequest& request) {
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<ServedTable> served, tables_.Find(request.table()));
  TANDEM_RETURN_IF_ERROR(served->table->Commit(
      {.epoch = request.epoch(), .version = request.version(), .items_consumed = request.items_consumed()}));
  return v1::ReplayCommitResponse();
}

void ReplayServerImpl::ScheduleTick() {
  absl::Duration period = kLongestTick;
  for (const std::shared_ptr<ServedTable>& served : tables_.All()) {
    period = std::min(period, served->table->tick_period());
  }
  ticks_.Defer(ticks_.NewTicket(), options_.clock->Now() + period, [this](rpc::DeferredCalls::Reason reason) {
    if (reason == rpc::DeferredCalls::Reason::kStopped) return;
    for (const std::shared_ptr<ServedTable>& served : tables_.All()) {
      if (served->table->tick_period() != absl::InfiniteDuration()) served->table->Tick();
    }
    if (options_.clock->Now() - logged_waits_ >= options_.log_waits_every) LogWaits();
    ScheduleTick();
  });
}

void ReplayServerImpl::LogWaits() {
  logged_waits_ = options_.clock->Now();
  std::map<std::string, Progress> now;
  for (const std::shared_ptr<ServedTable>& served : tables_.All()) {
    const TableInfo info = served->table->Info();
    const uint64_t admits = info.staleness.waiting_admits;
    if (info.waiting_inserts + info.waiting_samples + admits == 0) continue;
    const Progress progress = {.inserts = info.total_inserts,
                               .samples = info.total_samples,
                               .admitted = info.staleness.tickets.admitted,
                               .commits = info.staleness.commits};
    now[info.options.name] = progress;
    const auto before = progress_.find(info.options.name);
    if (before == progress_.end() || before->second != progress) continue;
    const auto log = [&](uint64_t waiting, absl::string_view calls, const std::string& why) {
      if (waiting == 0 || why.empty()) return;
      options_.log_wait(absl::StrCat(Counted(static_cast<int64_t>(waiting), calls), " of ", options_.name,
                                     waiting == 1 ? " waits: " : " wait: ", why));
    };
    log(info.waiting_inserts, "insert", info.why_no_insert);
    log(info.waiting_samples, "sample", info.why_no_sample);
    log(admits, "admission", info.staleness.why_not_admitted);
  }
  progress_ = std::move(now);
}

absl::StatusOr<v1::ReplaySetLimitsResponse> ReplayServerImpl::SetLimits(
    const v1::ReplaySetLimitsRequest& request) {
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<ServedTable> served, tables_.Find(request.table()));
  const TableOptions options = served->table->Info().options;
  RateLimit limit = options.limit;
  if (request.has_samples_per_insert()) limit.samples_per_insert = request.samples_per_insert();
  if (request.has_min_diff()) limit.min_diff = request.min_diff();
  if (request.has_max_diff()) limit.max_diff = request.max_diff();
  if (request.has_min_size()) limit.min_size = request.min_size();
  TANDEM_RETURN_IF_ERROR(
      served->table->SetLimits(limit, request.has_max_items() ? request.max_items() : options.max_items,
                               request.has_max_bytes() ? request.max_bytes() : options.max_bytes));
  v1::ReplaySetLimitsResponse response;
  *response.mutable_table() = InfoOf(*served);
  return response;
}

absl::StatusOr<v1::ReplayResetResponse> ReplayServerImpl::Reset(const v1::ReplayResetRequest& request) {
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<ServedTable> served, tables_.Find(request.table()));
  const uint64_t before = served->table->Info().removals.by_reset;
  served->table->Reset();
  v1::ReplayResetResponse response;
  response.set_removed(served->table->Info().removals.by_reset - before);
  return response;
}

absl::StatusOr<v1::ReplayExplainResponse> ReplayServerImpl::Explain(
    const v1::ReplayExplainRequest& request) const {
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<ServedTable> served, tables_.Find(request.table()));
  const v1::ReplayTableInfo info = InfoOf(*served);
  v1::ReplayExplainResponse response;
  const std::string table = absl::StrCat("table '", request.table(), "' ");
  response.add_reasons(info.why_no_insert().empty() ? absl::StrCat(table, "takes inserts")
                                                    : info.why_no_insert());
  response.add_reasons(info.why_no_sample().empty() ? absl::StrCat(table, "gives samples")
                                                    : info.why_no_sample());
  const v1::ReplayStalenessInfo& staleness = info.staleness();
  if (info.options().staleness().kind() == v1::ReplayStaleness::PACE) {
    response.add_reasons(staleness.why_not_admitted().empty() ? absl::StrCat(table, "admits rollouts")
                                                              : staleness.why_not_admitted());
    if (const absl::StatusOr<std::string> weights = served->table->FindWeights();
        !weights.ok() || !weights->empty()) {
      response.add_reasons(absl::StrCat(table,
                                        weights.ok() ? "paces actors by weights that they can pull: "
                                                     : "paces actors by weights that are missing: ",
                                        weights.ok() ? *weights : weights.status().message()));
    }
  }
  if (info.waiting_inserts() + info.waiting_samples() + staleness.waiting_admits() > 0) {
    response.add_reasons(
        absl::StrCat(Counted(static_cast<int64_t>(info.waiting_inserts()), "insert"), ", ",
                     Counted(static_cast<int64_t>(info.waiting_samples()), "sample"), " and ",
                     Counted(static_cast<int64_t>(staleness.waiting_admits()), "admission"), " wait"));
  }
  if (const uint64_t waits = inserts_.memory_waits(); waits > 0) {
    response.add_reasons(absl::StrCat("inserts into all tables that wait for memory: ", waits,
                                      "; chunks hold ", memory_.bytes(), " bytes and may hold ",
                                      options_.max_memory_bytes, " (--max-memory)"));
  }
  if (info.lost_items() > 0) {
    response.add_reasons(
        absl::StrCat(Counted(static_cast<int64_t>(info.lost_items()), "item"),
                     " were acknowledged and then lost, because the server ended after its last checkpoint"));
  }
  return response;
}

absl::StatusOr<v1::ReplayPeekResponse> ReplayServerImpl::Peek(const v1::ReplayPeekRequest& request) const {
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<ServedTable> served, tables_.Find(request.table()));
  if (request.count() < 1 || request.count() > kMaxPeek) {
    return absl::InvalidArgumentError(
        absl::StrCat("Peek of ", request.count(), " items; the number must be in [1, ", kMaxPeek, "]"));
  }
  v1::ReplayPeekResponse response;
  uint32_t next = request.next();
  for (const ItemStore::Item& item : served->table->Peek(request.count(), &next)) {
    v1::ReplayItemInfo& info = *response.add_items();
    info.set_key(item.key);
    info.set_priority(item.priority);
    info.set_times_sampled(item.times_sampled);
    info.set_serial(item.serial - served->table->first_serial());
    info.set_min_version(item.trajectory->min_version);
    info.set_max_version(item.trajectory->max_version);
    for (size_t c = 0; c < item.trajectory->slices_end.size(); ++c) {
      info.add_steps(static_cast<uint32_t>(item.trajectory->steps(c)));
    }
  }
  response.set_next(next);
  return response;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ReplayServer>> ReplayServer::Make(const ReplayServerOptions& options) {
  auto server = std::make_unique<ReplayServerImpl>(options);
  TANDEM_RETURN_IF_ERROR(Annotate(server->Restore(), options.name));
  server->StartCheckpoints();
  server->ScheduleTick();
  return std::unique_ptr<ReplayServer>(std::move(server));
}

}  // namespace tandem::replay
