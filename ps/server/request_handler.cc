// SPDX-License-Identifier: Apache-2.0
#include "ps/server/request_handler.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "ps/server/copy_role.h"
#include "ps/trace_kinds.h"
#include "tandem/v1/durability.pb.h"

namespace tandem::ps {
namespace {
absl::Status Stopped() { return absl::UnavailableError("the parameter server has stopped"); }
absl::Status NoChanges() {
  return absl::UnavailableError(
      "this copy of the shard takes no changes: it hands over, or another one is the primary");
}

absl::Status CheckPart(const ServerTable& table, const TablePush& part) {
  return part.deferred_gradients ? table.CheckDeferredGradients(part.worker)
                                 : table.CheckPush(part.worker, part.step);
}

// Returns the error of a table by which a pull must not run (ServerTable::CheckPull).
absl::Status CheckTables(const BoundRequest& request) {
  for (const BoundSlice& slice : request.slices) {
    TANDEM_RETURN_IF_ERROR(slice.table->CheckPull(request.step, request.worker));
  }
  return absl::OkStatus();
}
}  // namespace

absl::Status CheckWorker(const rpc::Caller& caller, uint32_t worker, absl::string_view what) {
  absl::string_view rank = caller.member;
  uint32_t number;
  if (!absl::ConsumePrefix(&rank, "worker/") || !absl::SimpleAtoi(rank, &number) || number == worker) {
    return absl::OkStatus();
  }
  return absl::PermissionDeniedError(absl::StrCat(what, " as worker ", worker, " by ", caller.member,
                                                  ": ClientOptions::worker must be the rank of the process"));
}

RequestHandler::RequestHandler(const ParameterServerOptions& options, TableRegistry* tables,
                               BufferPool* buffers, const std::atomic<bool>* stopping)
    : options_(options),
      tables_(*tables),
      buffers_(*buffers),
      stopping_(*stopping),
      deferred_(options.clock),
      executor_(options.threads) {}

absl::Status RequestHandler::Stopping() const {
  if (!takes_changes_) return NoChanges();
  constexpr absl::string_view kText = "the parameter server is stopping";
  return log() == nullptr ? absl::CancelledError(kText) : absl::UnavailableError(kText);
}

absl::Status RequestHandler::CheckTakesChanges() const {
  return takes_changes_ ? absl::OkStatus() : NoChanges();
}

void RequestHandler::SetTakesChanges(bool takes_changes) {
  // Admit and StartPushEpoch append under this lock.
  absl::MutexLock lock(&push_mutex_);
  takes_changes_ = takes_changes;
}

void RequestHandler::EndChanges() {
  SetTakesChanges(false);
  // Waits until the pushes that were admitted are applied.
  BetweenPushes([](Waiters*) { return absl::OkStatus(); }).IgnoreError();
}

void RequestHandler::Stop() {
  deferred_.Stop();
  executor_.Stop();
}

absl::Status RequestHandler::CheckDeferredBytes(uint64_t more) const {
  const uint64_t held = deferred_bytes() + tables_.WaitingBytes();
  if (held + more <= options_.max_parked_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "server ", options_.index, ": calls that wait for other workers hold ", held, " bytes and may hold ",
      options_.max_parked_bytes, ": a worker is far behind, or workers run too far ahead"));
}

absl::Time RequestHandler::ExpiryTime(const rpc::ServerCall& call) const {
  const absl::Time now = options_.clock->Now();
  const absl::Duration left = std::min(call.deadline() - now, options_.max_wait);
  return now + left - std::clamp(left / 10, absl::Milliseconds(5), absl::Seconds(1));
}

void RequestHandler::SetWorkersThatLeft(const std::set<uint32_t>& workers) {
  Waiters released;
  for (const std::shared_ptr<ServerTable>& table : tables_.All())
    table->SetWorkersThatLeft(workers, &released);
  Dispatch(std::move(released));
}

void RequestHandler::Dispatch(Waiters released) {
  if (released.empty()) return;
  for (size_t i = 0; i + 1 < released.size(); ++i) {
    if (!executor_.Post(released[i])) released[i]();
  }
  released.back()();
}

absl::Status RequestHandler::BetweenPushes(absl::FunctionRef<absl::Status(Waiters* released)> body) {
  Waiters released;
  absl::Status status;
  {
    absl::MutexLock lock(&between_pushes_mutex_);
    gate_.Close();
    status = body(&released);
    for (std::function<void()>& push : gate_.Open()) released.push_back(std::move(push));
  }
  Dispatch(std::move(released));
  return status;
}

absl::Status RequestHandler::BetweenPushes(LongestTime* longest, absl::FunctionRef<absl::Status()> body) {
  const LongestTime::Timer timer(longest);
  return BetweenPushes([&](Waiters*) { return body(); });
}

RequestHandler::PushPause::PushPause(RequestHandler* requests) ABSL_NO_THREAD_SAFETY_ANALYSIS
    : requests_(*requests) {
  requests_.between_pushes_mutex_.Lock();
  requests_.gate_.Close();
}

RequestHandler::PushPause::~PushPause() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  Waiters released;
  for (std::function<void()>& push : requests_.gate_.Open()) released.push_back(std::move(push));
  requests_.between_pushes_mutex_.Unlock();
  requests_.Dispatch(std::move(released));
}

absl::StatusOr<bool> RequestHandler::IsNewSequence(uint32_t worker, uint64_t epoch, uint64_t sequence) {
  absl::MutexLock lock(&push_mutex_);
  TANDEM_ASSIGN_OR_RETURN(const PushFence::Verdict verdict, fences_.Check(worker, epoch, sequence));
  return verdict == PushFence::Verdict::kNew;
}

void RequestHandler::TakeSequence(uint32_t worker, uint64_t epoch, uint64_t sequence) {
  absl::MutexLock lock(&push_mutex_);
  const absl::StatusOr<PushFence::Verdict> verdict = fences_.Check(worker, epoch, sequence);
  if (verdict.ok() && *verdict == PushFence::Verdict::kNew) fences_.Commit(worker, epoch, sequence);
}

std::vector<v1::WorkerFence> RequestHandler::SaveFences() {
  absl::MutexLock lock(&push_mutex_);
  return fences_.Save();
}

void RequestHandler::RestoreFences(const std::vector<v1::WorkerFence>& fences, bool same_servers) {
  absl::MutexLock lock(&push_mutex_);
  if (same_servers) {
    fences_.Restore(fences);
  } else {
    fences_.RestoreEpochsOnly(fences);
  }
}

absl::StatusOr<v1::StartPushEpochResponse> RequestHandler::StartPushEpoch(
    const v1::StartPushEpochRequest& request) {
  constexpr uint32_t kMaxWorkers = 65536;
  constexpr uint64_t kLargestEpoch = uint64_t{1} << 62;  // leaves epochs for later processes of the worker
  if (request.worker() >= kMaxWorkers || request.at_least() > kLargestEpoch) {
    return absl::InvalidArgumentError(absl::StrCat("a push epoch of at least ", request.at_least(),
                                                   " for worker ", request.worker(), ": workers are below ",
                                                   kMaxWorkers, ", epochs at most 2^62"));
  }
  v1::StartPushEpochResponse response;
  absl::MutexLock lock(&push_mutex_);
  TANDEM_RETURN_IF_ERROR(CheckTakesChanges());
  TANDEM_ASSIGN_OR_RETURN(const uint64_t epoch,
                          fences_.StartEpoch(request.worker(), request.at_least(), request.token()));
  response.set_epoch(epoch);
  if (log() != nullptr) {
    v1::LogStartEpoch record;
    record.set_worker(request.worker());
    record.set_epoch(epoch);
    record.set_token(request.token());
    LogChange(RecordKind::kStartEpoch, record);
  }
  return response;
}

namespace {

// Checks that the caller's grant, if it presents one, covers the tables.
absl::Status CheckGrant(const rpc::ServerCall& call, const std::vector<ParsedSlice>& slices) {
  if (ABSL_PREDICT_TRUE(call.grant() == nullptr)) return absl::OkStatus();
  for (const ParsedSlice& slice : slices) TANDEM_RETURN_IF_ERROR(call.CheckTable(slice.table_name));
  return absl::OkStatus();
}

}  // namespace

void RequestHandler::HandlePull(std::shared_ptr<rpc::ServerCall> call) {
  const TimePoint arrived = TableCounters::Clock::now();
  if (stopping_) return call->Finish(Stopped());
  absl::StatusOr<ParsedRequest> parsed =
      ParsePull(call->request(), {.buffers = buffers_, .max_message_bytes = options_.max_message_bytes});
  if (!parsed.ok()) return call->Finish(parsed.status());
  if (absl::Status may = CheckGrant(*call, parsed->slices); !may.ok()) return call->Finish(std::move(may));
  if (!parsed->read_only) {
    absl::Status allowed =
        options_.gate == nullptr
            ? absl::OkStatus()
            : options_.gate->Authorize(call->caller(), "a pull that may create rows", rpc::Right::kTrain);
    if (allowed.ok()) allowed = CheckWorker(call->caller(), parsed->worker, "pull");
    if (allowed.ok()) allowed = tables_.CheckMemory();
    if (!allowed.ok()) return call->Finish(std::move(allowed));
  }
  absl::StatusOr<BoundRequest> request = BindPull(*std::move(parsed), tables_, options_.max_message_bytes);
  // A primary may have handed over since the call came, and its tables may be copied anew. Those that were
  // bound before it stepped down stay as they are.
  if (!takes_changes_) return call->Finish(Stopping());
  if (!request.ok()) return call->Finish(request.status());
  const uint64_t step = request->step;
  const bool ready = std::all_of(request->slices.begin(), request->slices.end(),
                                 [step](const BoundSlice& slice) { return slice.table->Ready(step); });
  if (ready) {
    if (absl::Status may = CheckTables(*request); !may.ok()) return call->Finish(std::move(may));
    return RespondToPull(*std::move(request), std::move(call), arrived, &buffers_);
  }
  if (absl::Status status = CheckDeferredBytes(request->memory_bytes); !status.ok()) {
    return call->Finish(status);
  }
  auto pull = std::make_shared<PendingPull>(
      PendingPull{.call = std::move(call), .request = *std::move(request), .arrived = arrived});
  pull->ticket = deferred_.NewTicket();
  deferred_bytes_ += pull->request.memory_bytes;
  deferred_.Defer(pull->ticket, ExpiryTime(*pull->call),
                  [this, pull](rpc::DeferredCalls::Reason reason) { ExpirePull(*pull, reason); });
  // No push that comes here would wake it, and FinishDeferred may have been called before.
  if (!takes_changes_ && deferred_.Resume(pull->ticket)) {
    return ExpirePull(*pull, rpc::DeferredCalls::Reason::kStopped);
  }
  ContinuePull(pull);
}

void RequestHandler::HandlePullAtFollower(std::shared_ptr<rpc::ServerCall> call, CopyRole& role) {
  const TimePoint arrived = TableCounters::Clock::now();
  if (stopping_) return call->Finish(Stopped());
  absl::StatusOr<ParsedRequest> parsed =
      ParsePull(call->request(), {.buffers = buffers_, .max_message_bytes = options_.max_message_bytes});
  if (!parsed.ok()) return call->Finish(parsed.status());
  if (absl::Status may = CheckGrant(*call, parsed->slices); !may.ok()) return call->Finish(std::move(may));
  const absl::Duration max_lag = parsed->max_lag;
  if (!parsed->read_only || max_lag <= absl::ZeroDuration()) {
    absl::Status serving = role.CheckServing();
    return serving.ok() ? HandlePull(std::move(call)) : call->Finish(std::move(serving));
  }
  const auto refuse = [&](absl::Status why) {
    role.CountRead(false);
    call->Finish(std::move(why));
  };
  const absl::StatusOr<CopyRole::FollowerRead> before = role.CheckRead(max_lag);
  if (!before.ok()) return refuse(before.status());
  absl::StatusOr<BoundRequest> request = BindPull(*std::move(parsed), tables_, options_.max_message_bytes);
  // The tables stay as they are from the second check on, even if this copy is then dropped and made anew:
  // the new one has other tables.
  const absl::StatusOr<CopyRole::FollowerRead> read = role.CheckRead(max_lag);
  if (!read.ok()) return refuse(read.status());
  if (read->copy != before->copy)
    return refuse(absl::OutOfRangeError("this copy was made anew: ask the primary"));
  if (!request.ok()) return call->Finish(request.status());
  const uint64_t step = request->step;
  for (const BoundSlice& slice : request->slices) {
    // Nobody wakes pulls that wait here: records are applied without looking for them.
    if (slice.table->Ready(step)) continue;
    return refuse(absl::OutOfRangeError(
        absl::StrCat(slice.table->WhyWaiting(step, request->worker), ": only the primary lets pulls wait")));
  }
  if (absl::Status may = CheckTables(*request); !may.ok()) return call->Finish(std::move(may));
  role.CountRead(true);
  RespondToPull(*std::move(request), std::move(call), arrived, &buffers_,
                {.follower = true, .lag = read->lag});
}

void RequestHandler::ContinuePull(const std::shared_ptr<PendingPull>& pull) {
  const BoundRequest& request = pull->request;
  for (; pull->next < request.slices.size(); ++pull->next) {
    ServerTable& table = *request.slices[pull->next].table;
    if (!table.ReadyOrWait(request.step, pull->ticket, [this, pull] { ContinuePull(pull); })) {
      // The pull may have expired between two tables: only this thread can then remove the waiter.
      if (!deferred_.Contains(pull->ticket)) table.Forget(pull->ticket);
      return;
    }
  }
  if (!deferred_.Resume(pull->ticket)) return;
  deferred_bytes_ -= request.memory_bytes;
  if (absl::Status may = CheckTables(request); !may.ok()) return pull->call->Finish(std::move(may));
  RespondToPull(std::move(pull->request), pull->call, pull->arrived, &buffers_);
}

void RequestHandler::ExpirePull(const PendingPull& pull, rpc::DeferredCalls::Reason reason) {
  const BoundRequest& request = pull.request;
  deferred_bytes_ -= request.memory_bytes;
  if (reason == rpc::DeferredCalls::Reason::kStopped) {
    pull.call->Finish(Stopping());
  } else {
    std::string why;
    for (const BoundSlice& slice : request.slices) {
      if (slice.table->Ready(request.step)) continue;
      why = slice.table->WhyWaiting(request.step, request.worker);
      break;
    }
    if (why.empty()) {
      why = absl::StrCat("pull of step ", request.step, " by worker ", request.worker, " came too late");
    }
    pull.call->Finish(absl::DeadlineExceededError(why));
  }
  for (const BoundSlice& slice : request.slices) slice.table->Forget(pull.ticket);
}

void RequestHandler::HandlePush(std::shared_ptr<rpc::ServerCall> call) {
  PendingPush push{.call = std::move(call), .arrived = TableCounters::Clock::now(), .log_space = nullptr};
  if (ChangeLog* const log = this->log(); log != nullptr) {
    push.log_space = log->TakeSpace(push.call->request().size());
    if (push.log_space == nullptr) return AwaitLogSpace(*log, std::move(push));
  }
  StartPush(std::move(push));
}

void RequestHandler::AwaitLogSpace(ChangeLog& log, PendingPush push) {
  const uint64_t bytes = push.call->request().size();
  // The client repeats the push, which another error would end.
  if (absl::Status status = CheckDeferredBytes(bytes); !status.ok()) {
    return push.call->Finish(absl::UnavailableError(status.message()));
  }
  const uint64_t ticket = deferred_.NewTicket();
  const absl::Time expiry = ExpiryTime(*push.call);
  deferred_bytes_ += bytes;
  // The deferred entry alone owns the push, so that one which has expired is freed before there is space.
  const auto owned = std::make_shared<PendingPush>(std::move(push));
  const std::weak_ptr<PendingPush> waiting = owned;
  deferred_.Defer(ticket, expiry, [this, owned, bytes, &log](rpc::DeferredCalls::Reason reason) {
    deferred_bytes_ -= bytes;
    const std::string disk = log.waiting_for();
    owned->call->Finish(reason == rpc::DeferredCalls::Reason::kStopped
                            ? Stopping()
                            : absl::DeadlineExceededError(absl::StrCat(
                                  "server ", options_.index, ": the push waited for space in the log: ",
                                  disk.empty() ? "it is slow, or a checkpoint holds pushes up" : disk)));
  });
  log.AwaitSpace(bytes, [this, waiting, ticket, bytes](std::shared_ptr<ChangeLog::Space> space) {
    const std::shared_ptr<PendingPush> push = waiting.lock();
    if (push == nullptr || !deferred_.Resume(ticket)) return;  // the space goes to the next push
    deferred_bytes_ -= bytes;
    push->log_space = std::move(space);
    // The log's thread must not apply pushes.
    if (!executor_.Post([this, push] { StartPush(*push); })) push->call->Finish(Stopped());
  });
  // A log that has ended gives no space, and FinishDeferred may have been called before.
  if (!takes_changes_ && deferred_.Resume(ticket)) {
    deferred_bytes_ -= bytes;
    owned->call->Finish(NoChanges());
  }
}

void RequestHandler::StartPush(PendingPush push) {
  if (stopping_) return push.call->Finish(Stopped());
  if (!gate_.TryEnter()) return DeferPush(std::move(push));
  RunPush(std::move(push));
}

void RequestHandler::DeferPush(PendingPush push) {
  const std::shared_ptr<rpc::ServerCall> call = push.call;
  const uint64_t bytes = call->request().size();
  if (absl::Status status = CheckDeferredBytes(bytes); !status.ok()) return call->Finish(status);
  const uint64_t ticket = deferred_.NewTicket();
  deferred_bytes_ += bytes;
  deferred_.Defer(ticket, ExpiryTime(*call), [this, call, bytes](rpc::DeferredCalls::Reason reason) {
    deferred_bytes_ -= bytes;
    call->Finish(reason == rpc::DeferredCalls::Reason::kStopped
                     ? Stopping()
                     : absl::DeadlineExceededError(absl::StrCat(
                           "server ", options_.index, ": the push waited for a checkpoint, ",
                           log() == nullptr ? "" : "a snapshot, ", "or a change of update mode")));
  });
  auto go_on = [this, push, ticket, bytes] {
    if (!deferred_.Resume(ticket)) return;
    deferred_bytes_ -= bytes;
    StartPush(push);
  };
  if (!gate_.EnterOrDefer(go_on)) return;
  if (!deferred_.Resume(ticket)) return gate_.Leave();
  deferred_bytes_ -= bytes;
  RunPush(std::move(push));
}

void RequestHandler::RunPush(PendingPush push) {
  Waiters released;
  const absl::Status status = ApplyPush(&push, &released);
  gate_.Leave();
  if (!status.ok()) push.call->Finish(status);
  Dispatch(std::move(released));
}

absl::Status RequestHandler::ApplyPush(PendingPush* pending, Waiters* released) {
  const std::shared_ptr<rpc::ServerCall>& call = pending->call;
  const uint64_t traced = trace::Begin();
  TANDEM_ASSIGN_OR_RETURN(
      ParsedRequest parsed,
      ParsePush(call->request(), {.buffers = buffers_, .max_message_bytes = options_.max_message_bytes}));
  TANDEM_RETURN_IF_ERROR(CheckGrant(*call, parsed.slices));
  TANDEM_RETURN_IF_ERROR(CheckWorker(call->caller(), parsed.worker, "push"));
  TANDEM_ASSIGN_OR_RETURN(const BoundRequest request, BindPush(std::move(parsed), tables_));
  trace::End(kTraceParsePush, traced);
  SplitPush push = SplitByTable(request, buffers_);
  // A durable push has one part more, which the log settles.
  auto response = std::make_shared<PushResponder>(call, push.parts.size() + (log() == nullptr ? 0 : 1));
  for (size_t i = 0; i < push.parts.size(); ++i) {
    // The table outlives the part, since it is the table that calls `settled`.
    TableCounters* const counters = &push.tables[i]->counters();
    push.parts[i].settled =
        [response, counters, arrived = pending->arrived, bytes = push.wire_bytes[i],
         num_slices = static_cast<int>(request.slices.size()), slices = std::move(push.segments[i])](
            const absl::StatusOr<uint64_t>& missing, absl::Span<const RowStalenessCounts> segments) {
          counters->AddPushCall(arrived, bytes);
          response->AddRowStaleness(num_slices, slices, segments);
          response->Settle(missing);
        };
  }
  TANDEM_ASSIGN_OR_RETURN(const bool taken, Admit(request, pending, &push, response));
  if (!taken) {
    // A table that was damaged since may have lost the push that this one repeats.
    for (const auto& table : push.tables) TANDEM_RETURN_IF_ERROR(table->storage()->CheckWhole());
    // The record of the push that this one repeats may still be on its way to the disk.
    WhenDurable([response, call](const absl::Status& durable) {
      if (!durable.ok()) return call->Finish(durable);
      response->FinishDuplicate();
    });
    return absl::OkStatus();
  }
  for (const auto& table : push.tables) {
    Waiters more = table->Drain();
    std::move(more.begin(), more.end(), std::back_inserter(*released));
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> RequestHandler::Admit(const BoundRequest& request, PendingPush* pending, SplitPush* push,
                                           const std::shared_ptr<PushResponder>& response) {
  absl::MutexLock lock(&push_mutex_);
  TANDEM_RETURN_IF_ERROR(CheckTakesChanges());
  const bool tells_positions = options_.index == 0;
  std::vector<UpdatePosition> positions;
  TANDEM_ASSIGN_OR_RETURN(const PushFence::Verdict verdict,
                          fences_.Check(request.worker, request.epoch, request.sequence));
  if (verdict == PushFence::Verdict::kDuplicate) {
    // The first response may have been lost, and the other servers need the positions that it told.
    for (size_t i = 0; i < push->parts.size(); ++i) {
      positions.push_back(push->tables[i]->PositionOf(push->parts[i].worker, request.step));
    }
    if (tells_positions) response->SetPositions(request, push->tables, positions);
    return false;
  }
  bool ahead = false;
  for (size_t i = 0; i < push->parts.size(); ++i) {
    TANDEM_RETURN_IF_ERROR(CheckPart(*push->tables[i], push->parts[i]));
    ahead = ahead || (!push->parts[i].deferred_gradients && push->tables[i]->IsAhead(request.step));
  }
  // A push for which others wait is always accepted: it frees memory.
  if (ahead) TANDEM_RETURN_IF_ERROR(CheckDeferredBytes(request.memory_bytes));
  fences_.Commit(request.worker, request.epoch, request.sequence);
  if (log() != nullptr) {
    // The push keeps the space, too: giving it back starts other pushes, which must not happen under this
    // lock.
    const uint64_t position = log()->Append(RecordKind::kPush, pending->call->request(), pending->log_space,
                                            [response](const absl::Status& durable) {
                                              if (durable.ok()) return response->Settle(uint64_t{0});
                                              response->Settle(durable);
                                            });
    for (TablePush& part : push->parts) part.log_position = position;
  }
  for (size_t i = 0; i < push->parts.size(); ++i) {
    positions.push_back(push->tables[i]->Assign(&push->parts[i]));
  }
  if (tells_positions) response->SetPositions(request, push->tables, positions);
  for (size_t i = 0; i < push->parts.size(); ++i) push->tables[i]->Enqueue(std::move(push->parts[i]));
  return true;
}

absl::Status RequestHandler::ReplayPush(const Bytes& wire, uint64_t log_position) {
  TANDEM_ASSIGN_OR_RETURN(
      ParsedRequest parsed,
      ParsePush(wire, {.buffers = buffers_, .max_message_bytes = options_.max_message_bytes}));
  TANDEM_ASSIGN_OR_RETURN(const BoundRequest request, BindPush(std::move(parsed), tables_));
  SplitPush push = SplitByTable(request, buffers_);
  {
    absl::MutexLock lock(&push_mutex_);
    TANDEM_ASSIGN_OR_RETURN(const PushFence::Verdict verdict,
                            fences_.Check(request.worker, request.epoch, request.sequence));
    if (verdict == PushFence::Verdict::kDuplicate) return absl::OkStatus();
    for (size_t i = 0; i < push.parts.size(); ++i) {
      TANDEM_RETURN_IF_ERROR(CheckPart(*push.tables[i], push.parts[i]));
    }
    fences_.Commit(request.worker, request.epoch, request.sequence);
    for (size_t i = 0; i < push.parts.size(); ++i) {
      push.parts[i].log_position = log_position;
      push.tables[i]->Assign(&push.parts[i]);
      push.tables[i]->Enqueue(std::move(push.parts[i]));
    }
  }
  for (const auto& table : push.tables) table->Drain();  // nobody waits yet
  return absl::OkStatus();
}

v1::PushFenceState RequestHandler::SaveFenceState() {
  absl::MutexLock lock(&push_mutex_);
  return fences_.SaveState();
}

void RequestHandler::RestoreFenceState(const v1::PushFenceState& state) {
  absl::MutexLock lock(&push_mutex_);
  fences_.RestoreState(state);
}

void RequestHandler::RepeatStartEpoch(uint32_t worker, uint64_t epoch, uint64_t token) {
  absl::MutexLock lock(&push_mutex_);
  fences_.RepeatStart(worker, epoch, token);
}

void RequestHandler::LogChange(RecordKind kind, const google::protobuf::MessageLite& body) {
  ChangeLog* const log = this->log();
  if (log != nullptr) log->Append(kind, Bytes(body.SerializeAsString()), nullptr, nullptr);
}

void RequestHandler::WhenDurable(ChangeLog::Durable durable) {
  ChangeLog* const log = this->log();
  if (log == nullptr) return durable(absl::OkStatus());
  log->WhenDurable(std::move(durable));
}

}  // namespace tandem::ps
