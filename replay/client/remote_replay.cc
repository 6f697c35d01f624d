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
#include "replay/wire/messages.h"
#include "rpc/wire/bulk_codec.h"

namespace tandem::replay {
namespace {

constexpr char kService[] = "/tandem.v1.Replay/";
constexpr size_t kPayloadAlignment = 64;
// A server keeps 16 answers of a sampler, so that many calls may be under way or without an answer.
constexpr size_t kMaxOutstanding = 16;
constexpr size_t kKeptUnresolved = 8;

// Returns the payload as one run of memory that is aligned to 8 bytes. Shares the transport's memory while
// the bytes in `in_place` permit it; otherwise copies.
std::shared_ptr<const char> PayloadMemory(const Bytes& payload, size_t max_in_place,
                                          const std::shared_ptr<std::atomic<size_t>>& in_place) {
  const size_t size = payload.size();
  const bool one = payload.slices().size() == 1 && payload.slices()[0].owner() != nullptr &&
                   reinterpret_cast<uintptr_t>(payload.slices()[0].data()) % 8 == 0;
  if (one) {
    if (in_place->fetch_add(size) + size <= max_in_place) {
      const Slice slice = payload.slices()[0];
      return std::shared_ptr<const char>(
          slice.data(), [owner = slice.owner(), in_place, size](const char*) { *in_place -= size; });
    }
    *in_place -= size;
  }
  std::shared_ptr<char> copy(
      static_cast<char*>(::operator new (size, std::align_val_t{kPayloadAlignment})),
      [](char* memory) { ::operator delete (memory, std::align_val_t{kPayloadAlignment}); });
  BytesReader(payload).Copy(copy.get(), size);
  return copy;
}

absl::StatusOr<Batch> DecodeBatch(const Bytes& wire, size_t max_in_place,
                                  const std::shared_ptr<std::atomic<size_t>>& in_place) {
  v1::ReplaySampleResponse response;
  Bytes payload;
  TANDEM_RETURN_IF_ERROR(rpc::DecodeBulk(wire, &response, &payload));
  Batch batch;
  batch.keys.assign(response.keys().begin(), response.keys().end());
  batch.probabilities.assign(response.probabilities().begin(), response.probabilities().end());
  batch.priorities.assign(response.priorities().begin(), response.priorities().end());
  batch.times_sampled.assign(response.times_sampled().begin(), response.times_sampled().end());
  batch.min_versions.assign(response.min_versions().begin(), response.min_versions().end());
  batch.max_versions.assign(response.max_versions().begin(), response.max_versions().end());
  batch.table_items = response.table_items();
  batch.mass = response.mass();
  if (response.has_committed_version()) batch.committed_version = response.committed_version();
  const size_t n = batch.keys.size();
  const auto malformed = [](absl::string_view what) {
    return absl::InternalError(absl::StrCat("the server's sample is malformed: ", what));
  };
  for (const size_t size : {batch.probabilities.size(), batch.priorities.size(), batch.times_sampled.size(),
                            batch.min_versions.size(), batch.max_versions.size()}) {
    if (size != n) return malformed("its lists differ in length");
  }
  const std::shared_ptr<const char> memory = PayloadMemory(payload, max_in_place, in_place);
  for (const v1::ReplayBatchColumn& message : response.columns()) {
    BatchColumn& column = batch.columns.emplace_back();
    ColumnMessages one;
    *one.Add() = message.column();
    TANDEM_ASSIGN_OR_RETURN(std::vector<Column> columns, FromProto(one));
    TANDEM_ASSIGN_OR_RETURN(const auto signature, Signature::Make(columns));
    column.column = std::move(columns[0]);
    column.steps = message.steps();
    column.lengths.assign(message.lengths().begin(), message.lengths().end());
    if (column.lengths.empty()) {
      column.total_steps = uint64_t{column.steps} * n;
    } else {
      if (column.lengths.size() != n) return malformed("a column has other items");
      for (const uint32_t length : column.lengths) {
        if (length == 0) return malformed("an item without steps");
        column.total_steps += length;
      }
    }
    column.bytes = message.bytes();
    if (column.total_steps > payload.size() ||
        column.bytes != column.total_steps * signature->step_bytes(0) || message.offset() % 8 != 0 ||
        message.offset() > payload.size() || column.bytes > payload.size() - message.offset()) {
      return malformed("a column lies outside the payload");
    }
    column.data = std::shared_ptr<const char>(memory, memory.get() + message.offset());
  }
  return batch;
}

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

absl::Status RemoteReplay::Call(absl::string_view method, const google::protobuf::MessageLite& request,
                                google::protobuf::MessageLite* response, absl::Duration timeout) {
  return rpc::CallProto(*channel_, absl::StrCat(kService, method), request, response,
                        {.timeout = timeout, .idempotent = true});
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
  return std::make_unique<RemoteStream>(channel_, writer, options_.call_timeout);
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
  channel_->CallAsync(
      absl::StrCat(kService, "Sample"), Bytes(request.SerializeAsString()),
      {.timeout = no_wait ? options_.call_timeout : std::min(timeout, options_.call_timeout),
       // Without a sampler a repetition would draw other items, and those of the first be lost.
       .idempotent = !id.sampler.empty(),
       .cancel = std::move(cancel)},
      [max_in_place = options_.max_in_place_bytes, in_place = in_place_,
       done = std::move(done)](absl::StatusOr<Bytes> response) mutable {
        if (!response.ok()) return std::move(done)(response.status());
        std::move(done)(DecodeBatch(*response, max_in_place, in_place));
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
    status = Call("Admit", request, &response,
                  request.no_wait() ? options_.call_timeout : std::min(left, options_.call_timeout));
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
    tickets.push_back(
        {.id = id, .min_version = response.min_version(), .lease = absl::Seconds(response.lease_seconds())});
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

absl::Status RemoteReplay::Commit(absl::string_view table, const CommittedVersion& version) {
  v1::ReplayCommitResponse response;
  absl::Status status = Call("Commit", CommitRequest(table, version), &response);
  absl::MutexLock lock(&mutex_);
  if (status.ok()) {
    commits_[std::string(table)] = version;
  } else if (absl::IsFailedPrecondition(status)) {
    commits_.erase(std::string(table));  // another learner has committed a later version
  }
  return status;
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
  return FromProto(response.tables(0));
}

}  // namespace tandem::replay
