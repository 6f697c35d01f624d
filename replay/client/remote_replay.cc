// SPDX-License-Identifier: Apache-2.0
#include "replay/client/remote_replay.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/random.h"
#include "base/status.h"
#include "replay/client/may_repeat.h"
#include "replay/client/remote_stream.h"
#include "replay/client/sample_response.h"
#include "replay/wire/messages.h"

namespace tandem::replay {
namespace {

constexpr char kService[] = "/tandem.v1.Replay/";
// A server keeps 16 answers of a sampler, so that many calls may be under way or without an answer.
constexpr size_t kMaxOutstanding = 16;
constexpr size_t kKeptUnresolved = 8;

v1::ReplayCommitRequest CommitRequest(absl::string_view table, const CommittedVersion& version) {
  v1::ReplayCommitRequest request;
  request.set_table(std::string(table));
  request.set_epoch(version.epoch);
  request.set_version(version.version);
  request.set_items_consumed(version.items_consumed);
  return request;
}

}  // namespace

RemoteReplay::RemoteReplay(std::shared_ptr<rpc::Channel> channel, const Options& options)
    : channel_(std::move(channel)),
      options_(options),
      memory_(std::make_shared<BatchMemory>(options.max_in_place_bytes)),
      incarnation_(NewIncarnation()),
      sampler_(absl::StrCat(options.name, "#",
                            absl::Hex(Mix64(incarnation_, static_cast<uint64_t>(::getpid()))))) {}

uint64_t RemoteReplay::NewIncarnation() {
  static std::atomic<uint64_t> last{0};
  uint64_t before = last.load();
  uint64_t next;
  do {
    next = std::max<uint64_t>(before + 1, static_cast<uint64_t>(absl::ToUnixNanos(absl::Now())));
  } while (!last.compare_exchange_weak(before, next));
  return next;
}

absl::Duration RemoteReplay::TimeOfCall(absl::Duration left) const {
  return std::min(left > absl::ZeroDuration() ? left : options_.round_trip, options_.call_timeout);
}

absl::Status RemoteReplay::Call(absl::string_view method, const google::protobuf::MessageLite& request,
                                google::protobuf::MessageLite* response, absl::Duration timeout) {
  return rpc::CallProto(*channel_, absl::StrCat(kService, method), request, response,
                        {.timeout = timeout, .idempotent = true, .cancel = options_.cancel});
}

absl::Status RemoteReplay::CreateTable(const TableOptions& options) {
  TANDEM_RETURN_IF_ERROR(CheckTableOptions(options));
  v1::CreateReplayTableRequest request;
  *request.mutable_options() = ToProto(options);
  v1::CreateReplayTableResponse response;
  return Call("CreateTable", request, &response);
}

absl::StatusOr<std::unique_ptr<InsertStream>> RemoteReplay::OpenStream(absl::string_view writer) {
  if (writer.empty()) return absl::InvalidArgumentError("a writer of a replay server must have a name");
  return std::make_unique<RemoteStream>(channel_, writer, options_.call_timeout, options_.round_trip);
}

void RemoteReplay::StartSample(const std::string& table, const SampleSize& size, const SampleId& id,
                               absl::Duration timeout, std::stop_token cancel, SampleDone done) {
  v1::ReplaySampleRequest request;
  request.set_table(table);
  request.set_batch(size.batch);
  request.set_min_batch(size.min_batch);
  request.set_sampler(id.sampler);
  request.set_incarnation(id.incarnation);
  request.set_sequence(id.sequence);
  request.set_acknowledged(id.acknowledged);
  {
    absl::MutexLock lock(&mutex_);
    if (const auto last = commits_.find(table); last != commits_.end()) {
      *request.mutable_commit() = CommitRequest("", last->second);
    }
  }
  const bool no_wait = timeout <= absl::ZeroDuration();
  request.set_no_wait(no_wait);
  const auto read = std::make_shared<SampleResponse>(memory_);
  channel_->CallAsync(
      absl::StrCat(kService, "Sample"), Bytes(request.SerializeAsString()),
      {.timeout = TimeOfCall(timeout),
       // Without a sampler a repetition would draw other items, and those of the first be lost.
       .idempotent = !id.sampler.empty(),
       .cancel = cancel.stop_possible() ? std::move(cancel) : options_.cancel,
       .sink = read},
      [read, done = std::move(done)](absl::StatusOr<Bytes> response) mutable {
        if (!response.ok()) return std::move(done)(response.status());
        std::move(done)(read->Finish(*response));
      });
}

absl::StatusOr<Batch> RemoteReplay::Sample(absl::string_view table, const SampleSize& size,
                                           absl::Time deadline, absl::string_view sampler) {
  SampleId id = {.sampler = sampler_, .incarnation = incarnation_};
  const std::string wanted = absl::StrCat(size.batch, " ", size.min_batch, " ", table);
  {
    absl::MutexLock lock(&mutex_);
    const auto may_start = [this] {
      mutex_.AssertReaderHeld();
      return outstanding_.size() < kMaxOutstanding;
    };
    if (unresolved_.find(wanted) == unresolved_.end() &&
        !Clock::Real()->AwaitUntil(&mutex_, absl::Condition(&may_start), deadline)) {
      return absl::DeadlineExceededError(
          absl::StrCat("table '", table, "': ", kMaxOutstanding, " samples of this client are under way"));
    }
    if (const auto earlier = unresolved_.find(wanted); earlier != unresolved_.end()) {
      id.sequence = earlier->second;
      unresolved_.erase(earlier);
    } else {
      id.sequence = next_sequence_++;
      outstanding_.insert(id.sequence);
    }
    id.acknowledged = *outstanding_.begin() - 1;
  }
  absl::StatusOr<Batch> batch;
  absl::Status reason;  // why the table gave nothing so far
  for (bool over = false; !over;) {
    const absl::Duration left = deadline - MonotonicNow();
    absl::Notification done;
    StartSample(std::string(table), size, id, left, {}, [&](absl::StatusOr<Batch> result) {
      batch = std::move(result);
      done.Notify();
    });
    done.WaitForNotification();
    // The server answers a moment before the call's deadline, so that the reason arrives; the rest of the
    // time is for another call, unless it is too short. Aborted: a repetition that the transport has made
    // took the call's place, and its answer is lost.
    over = !(absl::IsDeadlineExceeded(batch.status()) || absl::IsAborted(batch.status())) ||
           deadline - MonotonicNow() < kShortestCall;
    // The last call may be so short that its reason does not arrive.
    if (over && absl::IsDeadlineExceeded(batch.status()) && !reason.ok()) batch = reason;
    if (absl::IsDeadlineExceeded(batch.status())) reason = batch.status();
  }
  absl::MutexLock lock(&mutex_);
  if (!batch.ok() && MayRepeat(batch.status())) {
    unresolved_.emplace(wanted, id.sequence);
    if (unresolved_.size() > kKeptUnresolved) {  // the items of one call are given up
      outstanding_.erase(unresolved_.begin()->second);
      unresolved_.erase(unresolved_.begin());
    }
  } else {
    outstanding_.erase(id.sequence);
  }
  return batch;
}

absl::StatusOr<uint64_t> RemoteReplay::UpdatePriorities(absl::string_view table,
                                                        absl::Span<const uint64_t> keys,
                                                        absl::Span<const double> priorities) {
  v1::ReplayUpdatePrioritiesRequest request;
  request.set_table(std::string(table));
  request.mutable_keys()->Add(keys.begin(), keys.end());
  request.mutable_priorities()->Add(priorities.begin(), priorities.end());
  v1::ReplayUpdatePrioritiesResponse response;
  TANDEM_RETURN_IF_ERROR(Call("UpdatePriorities", request, &response));
  return response.changed();
}

absl::StatusOr<std::vector<Ticket>> RemoteReplay::Admit(absl::string_view table, const AdmitRequest& wanted,
                                                        absl::Time deadline) {
  v1::ReplayAdmitRequest request;
  request.set_table(std::string(table));
  request.set_actor(wanted.actor.empty() ? sampler_ : wanted.actor);
  request.set_count(wanted.count);
  request.set_incarnation(wanted.sequence == 0 ? incarnation_ : wanted.incarnation);
  const std::string key = absl::StrCat(table, " ", request.actor());
  if (wanted.sequence == 0) {
    absl::MutexLock lock(&mutex_);
    const auto may_start = [this, &key] {
      mutex_.AssertReaderHeld();
      return !admitting_.contains(key);
    };
    if (!Clock::Real()->AwaitUntil(&mutex_, absl::Condition(&may_start), deadline)) {
      return absl::DeadlineExceededError(
          absl::StrCat("table '", table, "': another thread of this client waits for tickets of actor '",
                       request.actor(), "'"));
    }
    admitting_.insert(key);
    const auto earlier = unresolved_admits_.find(key);
    const bool same = earlier != unresolved_admits_.end() && earlier->second.count == wanted.count;
    request.set_sequence(same ? earlier->second.sequence : next_admit_++);
    if (earlier != unresolved_admits_.end()) unresolved_admits_.erase(earlier);
  } else {
    request.set_sequence(wanted.sequence);
  }
  v1::ReplayAdmitResponse response;
  absl::Status status, reason;
  do {
    reason = status;
    const absl::Duration left = deadline - MonotonicNow();
    request.set_no_wait(left <= absl::ZeroDuration());
    response.Clear();
    status = Call("Admit", request, &response, TimeOfCall(left));
  } while (absl::IsDeadlineExceeded(status) && deadline - MonotonicNow() >= kShortestCall);
  if (absl::IsDeadlineExceeded(status) && !reason.ok()) status = reason;
  if (wanted.sequence == 0) {
    absl::MutexLock lock(&mutex_);
    admitting_.erase(key);
    // Aborted: the server has seen a later request of the actor, and never takes this one again.
    if (MayRepeat(status) && !absl::IsAborted(status)) {
      unresolved_admits_[key] = wanted;
      unresolved_admits_[key].sequence = request.sequence();
    }
  }
  TANDEM_RETURN_IF_ERROR(status);
  std::vector<Ticket> tickets;
  for (const uint64_t id : response.tickets()) {
    tickets.push_back({.id = id,
                       .min_version = response.min_version(),
                       .epoch = response.epoch(),
                       .lease = absl::Seconds(response.lease_seconds())});
  }
  return tickets;
}

absl::StatusOr<uint64_t> RemoteReplay::Renew(absl::string_view table, absl::Span<const uint64_t> tickets) {
  v1::ReplayRenewTicketsRequest request;
  request.set_table(std::string(table));
  request.mutable_tickets()->Add(tickets.begin(), tickets.end());
  v1::ReplayRenewTicketsResponse response;
  TANDEM_RETURN_IF_ERROR(Call("RenewTickets", request, &response));
  return response.in_use();
}

absl::StatusOr<uint64_t> RemoteReplay::ReturnTickets(absl::string_view table,
                                                     absl::Span<const uint64_t> tickets) {
  v1::ReplayRenewTicketsRequest request;
  request.set_table(std::string(table));
  request.mutable_tickets()->Add(tickets.begin(), tickets.end());
  request.set_end(true);
  v1::ReplayRenewTicketsResponse response;
  TANDEM_RETURN_IF_ERROR(Call("RenewTickets", request, &response));
  return response.in_use();
}

absl::Status RemoteReplay::Commit(absl::string_view table, const CommittedVersion& version,
                                  absl::Time deadline) {
  v1::ReplayCommitResponse response;
  const absl::Status status =
      Call("Commit", CommitRequest(table, version), &response, TimeOfCall(deadline - MonotonicNow()));
  absl::MutexLock lock(&mutex_);
  if (status.ok()) {
    commits_[std::string(table)] = version;
  } else if (absl::IsFailedPrecondition(status)) {
    commits_.erase(std::string(table));  // another learner has committed a later version
  }
  return status;
}

std::optional<int64_t> RemoteReplay::LastCommit(absl::string_view table) const {
  absl::MutexLock lock(&mutex_);
  const auto last = commits_.find(std::string(table));
  return last == commits_.end() ? std::nullopt : std::optional(last->second.version);
}

void RemoteReplay::ForgetUnanswered(absl::string_view table) {
  absl::MutexLock lock(&mutex_);
  std::erase_if(unresolved_, [&](const auto& entry) {
    if (entry.first.substr(entry.first.find(' ', entry.first.find(' ') + 1) + 1) != table) return false;
    outstanding_.erase(entry.second);
    return true;
  });
}

absl::StatusOr<TableInfo> RemoteReplay::Info(absl::string_view table, absl::Time deadline) {
  v1::ListReplayTablesRequest request;
  request.set_table(std::string(table));
  v1::ListReplayTablesResponse response;
  const absl::Duration left = deadline - MonotonicNow();
  if (left <= absl::ZeroDuration()) {
    return absl::DeadlineExceededError(absl::StrCat("table '", table, "': no time is left to ask for it"));
  }
  TANDEM_RETURN_IF_ERROR(Call("ListTables", request, &response, std::min(left, options_.call_timeout)));
  if (response.tables_size() != 1) return absl::InternalError("the server's answer has no table");
  TANDEM_ASSIGN_OR_RETURN(TableInfo info, FromProto(response.tables(0)));
  info.server_incarnation = response.server_incarnation();
  return info;
}

}  // namespace tandem::replay
