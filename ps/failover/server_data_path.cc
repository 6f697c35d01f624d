// SPDX-License-Identifier: Apache-2.0
#include "ps/failover/server_data_path.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"
#include "ps/failover/copying.h"
#include "ps/server/state_restore.h"

namespace tandem::ps {

absl::Duration CopyDelay(int attempts) {
  if (attempts <= 1) return absl::ZeroDuration();
  return std::min(absl::Milliseconds(50) * (1 << std::min(attempts - 1, 10)),
                  absl::Duration(absl::Seconds(2)));
}

std::unique_ptr<CopyRole> MakeCopyRole(const ServerParts& parts) {
  return std::make_unique<ServerDataPath>(parts);
}

template <typename... Args>
void ServerDataPath::Tell(std::function<void(Args...)> ReceiverEvents::*event, Args... args) {
  std::function<void(Args...)> function;
  {
    absl::MutexLock lock(&mutex_);
    function = events_.*event;
  }
  if (function) function(args...);
}

ServerDataPath::ServerDataPath(const ServerParts& server)
    : server_(server),
      why_not_("it has not found out yet which copy is the primary"),
      tables_(&server_),
      receiver_({.shard = server.tables->server(),
                 .boot_time = server.boot_time,
                 .on_heard = [this] { Tell(&ReceiverEvents::on_heard); },
                 .on_complete = [this] { Tell(&ReceiverEvents::on_complete); },
                 .on_failure =
                     [this](const absl::Status& why) {
                       Tell<const absl::Status&>(&ReceiverEvents::on_failure, why);
                     }},
                &tables_) {}

ServerDataPath::~ServerDataPath() { Stop(); }

void ServerDataPath::Stop() {
  if (stopped_.exchange(true)) return;  // the destructor calls this when the server's other parts are gone
  SetServing(false, "it is stopping");
  receiver_.Stop();
  if (ShippedLog* const log = this->log(); log != nullptr) log->Stop();
}

absl::Status ServerDataPath::CheckServing() const {
  if (serving()) return absl::OkStatus();
  std::string why = "its lease is over: a follower that did not answer may have taken over";
  if (!serving_.load(std::memory_order_acquire)) {
    absl::MutexLock lock(&mutex_);
    why = why_not_;
  }
  return absl::UnavailableError(
      absl::StrCat("this copy of shard ", server_.tables->server(), " does not serve: ", why));
}

bool ServerDataPath::HoldsLease() const {
  const int64_t end = lease_end_ns_.load(std::memory_order_relaxed);
  return end == std::numeric_limits<int64_t>::max() || ToSteadyNanoseconds(BootTime()) < end;
}

void ServerDataPath::SetLeaseEnd(absl::Time end) {
  lease_end_ns_.store(ToSteadyNanoseconds(end), std::memory_order_relaxed);
}

absl::StatusOr<CopyRole::FollowerRead> ServerDataPath::CheckRead(absl::Duration max_lag) {
  TANDEM_ASSIGN_OR_RETURN(const Receiver::Read read, receiver_.CheckRead(max_lag));
  return FollowerRead{.copy = read.copy, .lag = read.lag};
}

void ServerDataPath::CountRead(bool served) {
  (served ? reads_served_ : reads_refused_).fetch_add(1, std::memory_order_relaxed);
}

DataPath::FollowerReads ServerDataPath::follower_reads() const {
  return {.served = reads_served_.load(std::memory_order_relaxed),
          .refused = reads_refused_.load(std::memory_order_relaxed),
          .lag = receiver_.lag()};
}

void ServerDataPath::SetServing(bool serving, const std::string& why) {
  TANDEM_CHECK(!serving || log() != nullptr);
  if (ShippedLog* const log = this->log(); log != nullptr) log->SetMayLead(serving);
  if (serving) server_.requests->SetTakesChanges(true);
  {
    absl::MutexLock lock(&mutex_);
    why_not_ = why;
    serving_.store(serving, std::memory_order_release);
  }
  // Calls that were let in before append nothing any more: a follower that is asked to take over has it all.
  if (!serving) server_.requests->SetTakesChanges(false);
}

void ServerDataPath::Clear() {
  TANDEM_CHECK(!serving_ && log() == nullptr);
  tables_.Clear();
}

void ServerDataPath::SetReceiverEvents(ReceiverEvents events) {
  absl::MutexLock lock(&mutex_);
  events_ = std::move(events);
}

absl::Status ServerDataPath::Promote(Promotion promotion) {
  const Receiver::State received = receiver_.state();
  if (log() != nullptr) return absl::FailedPreconditionError("the server is the primary already");
  if (received.stored_number > 0 && (!received.complete || !received.status.ok())) {
    return absl::FailedPreconditionError(
        absl::StrCat("this copy of shard ", server_.tables->server(), " is not whole",
                     received.status.ok() ? "" : absl::StrCat(": ", received.status.message()),
                     ", so it cannot take over"));
  }
  if (received.applied_position != received.stored_position) {
    return absl::FailedPreconditionError(absl::StrCat(
        "this copy of shard ", server_.tables->server(), " has applied record ", received.applied_position,
        " of ", received.stored_position, ", so it cannot take over yet"));
  }
  TANDEM_RETURN_IF_ERROR(CheckWhole(*server_.tables));
  // Clients that hold rows of an earlier primary drop them.
  for (const auto& table : server_.tables->All()) {
    table->RaiseGeneration(table->generation() + promotion.term);
  }
  // A follower that goes on without being copied must have generations above those of its next primary, too.
  v1::LogContinue tables;
  for (const auto& table : server_.tables->All()) {
    v1::LogContinue::Table* const one = tables.add_tables();
    one->set_name(table->name());
    one->set_generation(table->generation());
  }
  log_ = std::make_unique<ShippedLog>(ShippedLog::Options{.shard = server_.tables->server(),
                                                          .term = promotion.term,
                                                          .primary = promotion.id,
                                                          .first_position = received.stored_position + 1,
                                                          .min_copies = promotion.min_copies,
                                                          .max_link_bytes = promotion.max_link_bytes,
                                                          .lease = promotion.lease,
                                                          .boot_time = server_.boot_time,
                                                          .base = {received.term, received.stored_position},
                                                          .continue_body = tables.SerializeAsString(),
                                                          .events = std::move(promotion.events)},
                                      receiver_.TakeTail());
  server_.interrupt_checkpoints(false);
  server_.requests->SetLog(log_.get());
  shipped_.store(log_.get(), std::memory_order_release);
  return absl::OkStatus();
}

void ServerDataPath::StepDown(std::function<void(const absl::Status&)> done) {
  // The background thread may be saving one.
  server_.interrupt_checkpoints(true);
  // Everything that changes tables and is no push, StartPushEpoch or Register runs on that thread.
  const bool posted = server_.background->Post([this, done] { done(EndTerm()); });
  if (!posted) done(absl::CancelledError("the server is stopping"));
}

absl::Status ServerDataPath::EndTerm() {
  ShippedLog* const log = this->log();
  if (*server_.stopping) return absl::CancelledError("the server is stopping");
  if (log == nullptr || serving_)
    return absl::FailedPreconditionError("this server serves, or is no primary");
  server_.requests->EndChanges();
  // Register asks CheckTakesChanges under the lock that this call takes.
  (void)server_.registered();
  // All records that were appended are in the tables, and no later ones come. The next primary may lack some;
  // then it copies its tables to this server.
  const Lineage held{.term = log->term(), .position = log->last_position()};
  log->Stop();
  server_.requests->FinishDeferred();
  shipped_.store(nullptr, std::memory_order_release);
  ended_logs_.push_back(std::move(log_));
  SetLeaseEnd(absl::InfiniteFuture());
  TANDEM_RETURN_IF_ERROR(CheckWhole(*server_.tables));
  tables_.Adopt();
  receiver_.Adopt(held);
  return absl::OkStatus();
}

absl::Status ServerDataPath::StartLink(const Copy& copy, std::unique_ptr<rpc::Channel> channel,
                                       const Lineage& held) {
  ShippedLog* const log = this->log();
  if (log == nullptr) return absl::FailedPreconditionError("this server is not the primary of its shard");
  if (log->CanContinue(held)) return log->ContinueLink(copy, std::move(channel), held).status();
  const auto copying = std::make_shared<Copying>(&server_, log, copy.id, &longest_pause_);
  return log->StartLink(copy, std::move(channel), NextAttempt(copy.address), [copying] { copying->Begin(); })
      .status();
}

absl::Time ServerDataPath::NextAttempt(const std::string& address) {
  const absl::Time now = MonotonicNow();
  absl::MutexLock lock(&mutex_);
  // Addresses of processes that are no more are forgotten.
  std::erase_if(attempts_, [now](const auto& one) { return now - one.second.last > kForgetAttempts; });
  Attempts& attempts = attempts_[address];
  attempts.last = now;
  return now + CopyDelay(++attempts.number);
}

double ServerDataPath::longest_copy_pause_s() const { return longest_pause_.seconds(); }

void ServerDataPath::SetLoadHooks(std::function<absl::Status()> before, std::function<void()> after) {
  absl::MutexLock lock(&mutex_);
  before_load_ = std::move(before);
  after_load_ = std::move(after);
}

absl::Status ServerDataPath::BeforeLoad() {
  std::function<absl::Status()> before;
  {
    absl::MutexLock lock(&mutex_);
    before = before_load_;
  }
  if (before) TANDEM_RETURN_IF_ERROR(before());
  loading_ = true;
  return absl::OkStatus();
}

void ServerDataPath::AfterLoad() {
  std::function<void()> after;
  {
    absl::MutexLock lock(&mutex_);
    after = after_load_;
  }
  // A copy that has the last record, but not the loaded tables, does not pass for one that has both.
  if (ShippedLog* const log = this->log(); log != nullptr && std::exchange(loading_, false)) {
    log->SkipPosition();
  }
  if (after) after();
}

}  // namespace tandem::ps
