// SPDX-License-Identifier: Apache-2.0
#include "ps/failover/receiver.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "rpc/wire/bulk_codec.h"

namespace tandem::ps {
namespace {

constexpr absl::Duration kHeardEvery = absl::Milliseconds(20);
constexpr size_t kMaxAppendHeader = size_t{64} << 10;
// More marks are merged, which makes the lag look larger than it is.
constexpr size_t kMaxMarks = 1024;
// An idle link's beats come so often within the lag that a read allows: each echo is a beat old.
constexpr int kBeatsInLag = 4;
constexpr absl::Duration kShortestBeat = absl::Milliseconds(5);
constexpr absl::Duration kWantedFor = absl::Seconds(10);  // after a read

void RunAll(std::vector<std::function<void()>> after) {
  for (const std::function<void()>& function : after) function();
}

bool IsOfCopy(RecordKind kind) {
  return kind == RecordKind::kState || kind == RecordKind::kRows || kind == RecordKind::kEnd;
}

}  // namespace

Receiver::Receiver(Options options, ReceivedRecords* records)
    : options_(std::move(options)),
      records_(*records),
      tail_(options_.max_tail_bytes),
      thread_([this] { Run(); }) {}

Receiver::~Receiver() { Stop(); }

void Receiver::Stop() {
  After after;
  {
    absl::MutexLock lock(&mutex_);
    if (stopping_) return;
    stopping_ = true;
    fence_.Close();
    EndReadsLocked();
    why_closed_ = "the server is stopping";
    RefuseAllLocked(absl::UnavailableError(why_closed_), &after);
  }
  RunAll(std::move(after));
  thread_.join();
  std::vector<std::function<void(const absl::Status&)>> waiting;
  {
    absl::MutexLock lock(&mutex_);
    waiting.swap(on_applied_);
  }
  for (const auto& done : waiting) done(absl::CancelledError("the server is stopping"));
}

void Receiver::Raise(uint64_t term) {
  absl::MutexLock lock(&mutex_);
  fence_.Raise(term);
}

uint64_t Receiver::term() const {
  absl::MutexLock lock(&mutex_);
  return fence_.term();
}

void Receiver::Open(uint64_t term, const std::string& primary, const std::string& self) {
  absl::MutexLock lock(&mutex_);
  TANDEM_CHECK(stored_.empty() && !applying_);
  fence_.Open(term, primary, self);
  EndReadsLocked();
  readable_ = true;
  state_ = State();
  has_state_ = has_end_ = false;
  acknowledged_number_ = acknowledged_position_ = 0;
  tail_.Restart(0);
}

Lineage Receiver::Reopen(uint64_t term, const std::string& primary, const std::string& self) {
  After after;
  Lineage held;
  {
    absl::MutexLock lock(&mutex_);
    if (stopping_ || !state_.complete || !has_end_ || !state_.status.ok()) return {};
    RefuseAllLocked(absl::UnavailableError("this copy follows another primary"), &after);
    fence_.Open(term, primary, self);
    // Reads are answered again when the primary has shown that what is here is part of its log.
    EndReadsLocked();
    held = {.term = state_.term, .position = state_.stored_position};
    state_.stored_number = state_.primary_position = 0;
    // Nothing of this link is stored yet.
    acknowledged_number_ = acknowledged_position_ = 0;
  }
  RunAll(std::move(after));
  return held;
}

void Receiver::Adopt(const Lineage& held) {
  absl::MutexLock lock(&mutex_);
  TANDEM_CHECK(stored_.empty() && !applying_);
  state_ = State{.stored_position = held.position,
                 .applied_position = held.position,
                 .primary_position = held.position,
                 .complete = true,
                 .term = held.term};
  has_state_ = has_end_ = true;
  tail_.Restart(held.position);
}

LogTail Receiver::TakeTail() {
  absl::MutexLock lock(&mutex_);
  LogTail tail = std::move(tail_);
  tail_ = LogTail(options_.max_tail_bytes);
  tail_.Restart(state_.stored_position);
  return tail;
}

void Receiver::Close(const std::string& why) {
  After after;
  {
    absl::MutexLock lock(&mutex_);
    fence_.Close();
    EndReadsLocked();
    why_closed_ = why;
    RefuseAllLocked(absl::UnavailableError(absl::StrCat(Who(), ": ", why)), &after);
  }
  RunAll(std::move(after));
}

void Receiver::Drop(const std::string& why) {
  Close(why);
  std::deque<Stored> dropped;
  std::vector<std::function<void(const absl::Status&)>> waiting;
  {
    absl::MutexLock lock(&mutex_);
    dropped.swap(stored_);
    waiting.swap(on_applied_);
  }
  for (const auto& done : waiting) done(absl::CancelledError(why));
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(this, &Receiver::IsIdle));
  state_.unapplied_bytes = 0;
}

void Receiver::ApplyAll(std::function<void(const absl::Status&)> done) {
  absl::Status status;
  {
    absl::MutexLock lock(&mutex_);
    if (!stopping_ && state_.status.ok() && (applying_ || !stored_.empty())) {
      on_applied_.push_back(std::move(done));
      return;
    }
    status = stopping_ ? absl::CancelledError("the server is stopping") : state_.status;
  }
  done(status);
}

Receiver::State Receiver::state() const {
  absl::MutexLock lock(&mutex_);
  return state_;
}

std::string Receiver::Who() const {
  return absl::StrCat("shard ", options_.shard, ", copy ", fence_.self().empty() ? "(none)" : fence_.self());
}

v1::AppendResponse Receiver::ResponseLocked() const {
  v1::AppendResponse response;
  response.set_term(fence_.term());
  response.set_stored_number(acknowledged_number_);
  response.set_stored_position(acknowledged_position_);
  // Records of an earlier primary's log do not count before they are known to be in this one's.
  response.set_applied_position(std::min(state_.applied_position, acknowledged_position_));
  response.set_complete(has_end_ && state_.stored_number > 0);
  const int64_t now = Now();
  response.set_clock(static_cast<uint64_t>(now));
  if (now < wanted_until_.load(std::memory_order_relaxed)) {
    response.set_beat_ms(
        static_cast<uint32_t>(beat_ns_.load(std::memory_order_relaxed) / int64_t{1'000'000}));
  }
  return response;
}

// Reads.

void Receiver::MarkLocked(const v1::AppendRequest& header) {
  // A primary that does not lead may not know that another one has a newer log.
  if (!header.leads() || header.echo() == 0 || !readable_) return;
  const auto time = static_cast<int64_t>(header.echo());
  if (time > Now()) return;  // no time of this process
  const Mark mark{.position = header.position(), .time = time};
  if (!marks_.empty()) {
    Mark& last = marks_.back();
    // A message that was overtaken: a later one has told more.
    if (mark.position < last.position || mark.time <= last.time) return;
    if (mark.position == last.position || marks_.size() >= kMaxMarks) {
      last = mark;
      return RefreshLocked();
    }
  }
  marks_.push_back(mark);
  RefreshLocked();
}

void Receiver::RefreshLocked() {
  if (!readable_ || !state_.complete) return;
  int64_t fresh = 0;
  for (; !marks_.empty() && marks_.front().position <= state_.applied_position; marks_.pop_front()) {
    fresh = marks_.front().time;
  }
  if (fresh > fresh_.load(std::memory_order_relaxed)) fresh_.store(fresh, std::memory_order_seq_cst);
}

void Receiver::EndReadsLocked() {
  readable_ = false;
  marks_.clear();
  fresh_.store(0, std::memory_order_seq_cst);
  copy_.fetch_add(1, std::memory_order_seq_cst);
}

absl::StatusOr<Receiver::Read> Receiver::CheckRead(absl::Duration max_lag) {
  const uint64_t copy = copy_.load(std::memory_order_seq_cst);
  const int64_t fresh = fresh_.load(std::memory_order_seq_cst);
  const int64_t now = Now();
  const int64_t beat =
      absl::ToInt64Nanoseconds(std::max(kShortestBeat, std::min(max_lag, kWantedFor) / kBeatsInLag));
  if (now >= wanted_until_.load(std::memory_order_relaxed) ||
      beat < beat_ns_.load(std::memory_order_relaxed)) {
    beat_ns_.store(beat, std::memory_order_relaxed);
  }
  if (beat <= beat_ns_.load(std::memory_order_relaxed)) {
    wanted_until_.store(now + absl::ToInt64Nanoseconds(kWantedFor), std::memory_order_relaxed);
  }
  if (fresh == 0) {
    return absl::OutOfRangeError(absl::StrCat(
        "this copy of shard ", options_.shard,
        " does not know how far it is behind: it is not complete, or has no primary: ask the primary"));
  }
  const absl::Duration lag = absl::Nanoseconds(now - fresh);
  if (lag > max_lag) {
    return absl::OutOfRangeError(absl::StrCat("this follower of shard ", options_.shard, " is up to ",
                                              absl::FormatDuration(absl::Trunc(lag, absl::Microseconds(1))),
                                              " behind its primary, and the pull allows ",
                                              absl::FormatDuration(max_lag), ": ask the primary"));
  }
  return Read{.copy = copy, .lag = lag};
}

absl::Duration Receiver::lag() const {
  const int64_t fresh = fresh_.load(std::memory_order_seq_cst);
  return fresh == 0 ? absl::InfiniteDuration() : absl::Nanoseconds(Now() - fresh);
}

void Receiver::RefuseAllLocked(const absl::Status& why, After* after) {
  const auto refuse = [&](Reply reply) { after->push_back([reply = std::move(reply), why] { reply(why); }); };
  for (auto& [number, early] : early_) {
    for (Reply& reply : early.replies) refuse(std::move(reply));
  }
  early_.clear();
}

void Receiver::FailLocked(const absl::Status& why, After* after) {
  if (!state_.status.ok()) return;
  state_.status = why;
  EndReadsLocked();
  RefuseAllLocked(absl::FailedPreconditionError(absl::StrCat(Who(), ": ", why.message())), after);
  if (options_.on_failure) after->push_back([this, why] { options_.on_failure(why); });
}

void Receiver::AcknowledgeLocked() {
  if (state_.unapplied_bytes > options_.max_unapplied_bytes) return;
  if (state_.stored_number == 0) return;
  acknowledged_number_ = state_.stored_number;
  acknowledged_position_ = state_.stored_position;
}

absl::Status Receiver::CheckLocked(const std::vector<Record>& records) const {
  bool has_state = has_state_, has_end = has_end_;
  uint64_t position = state_.stored_position;
  const bool begins = state_.stored_number == 0;
  for (const Record& record : records) {
    const auto wrong = [&](absl::string_view expected) {
      return absl::InvalidArgumentError(absl::StrCat(
          Who(), ": the primary sent a record of kind ", static_cast<uint32_t>(record.kind), " at position ",
          record.position, " behind message ", state_.stored_number, ", and ", expected, " must come next"));
    };
    if (record.kind == RecordKind::kState) {
      if (has_state && (!begins || &record != &records.front())) return wrong("no second state");
      has_state = true;
      has_end = false;
      position = record.position;
    } else if (!has_state) {
      return wrong("the state of the copy");
    } else if (IsOfCopy(record.kind)) {
      // The position of rows is that of their copying. Records other than pushes may have passed them since.
      if (has_end) return wrong("no record of a copy that is whole");
      has_end = record.kind == RecordKind::kEnd;
    } else if (record.kind == RecordKind::kContinue) {
      if (!has_end || record.position != position) return wrong(absl::StrCat("record ", position + 1));
    } else if (record.position != ++position) {
      return wrong(absl::StrCat("the record at position ", position));
    }
  }
  return absl::OkStatus();
}

Slice Receiver::Contiguous(const Bytes& payload) {
  if (payload.slices().size() == 1 && payload.slices()[0].owner() != nullptr) return payload.slices()[0];
  const std::shared_ptr<char> copy = buffers_.Get(std::max<size_t>(payload.size(), 1));
  char* to = copy.get();
  for (const Slice& slice : payload.slices()) {
    std::memcpy(to, slice.data(), slice.size());
    to += slice.size();
  }
  return Slice(copy, copy.get(), payload.size());
}

absl::Status Receiver::StoreLocked(const Bytes& payload) {
  Stored stored{.bytes = Contiguous(payload)};
  for (size_t at = 0; at < stored.bytes.size();) {
    const std::optional<Record> record = ParseRecord(stored.bytes.view(), at);
    if (!record.has_value()) {
      return absl::DataLossError(absl::StrCat(Who(), ": message ", state_.stored_number + 1,
                                              " from the primary ", fence_.primary(), " is damaged at byte ",
                                              at, " of ", stored.bytes.size()));
    }
    at += record->bytes;
    stored.records.push_back(*record);
  }
  TANDEM_RETURN_IF_ERROR(CheckLocked(stored.records));
  if (state_.stored_number == 0) {
    const bool replaces =
        has_state_ && stored.records.size() > 0 && stored.records[0].kind == RecordKind::kState;
    if (replaces) EndReadsLocked();
    readable_ = true;
  }
  size_t offset = 0, run = 0;  // of the record, and of the first one of a run of records of the log
  uint64_t first = 0;          // position of that one; 0: there is none
  const auto end_run = [&] {
    if (first == 0) return;
    tail_.Add(first, state_.stored_position, stored.bytes.Sub(run, offset - run));
    first = 0;
  };
  for (const Record& record : stored.records) {
    has_state_ = true;
    if (record.kind == RecordKind::kState) {
      has_end_ = state_.complete = false;
      state_.stored_position = record.position;
      tail_.Restart(record.position);
    } else if (IsOfCopy(record.kind) || record.kind == RecordKind::kContinue) {
      end_run();
      has_end_ = has_end_ || record.kind == RecordKind::kEnd;
    } else if (!has_end_) {
      state_.stored_position = record.position;
      tail_.Restart(record.position);
    } else {
      if (first == 0) {
        first = record.position;
        run = offset;
      }
      state_.stored_position = record.position;
    }
    offset += record.bytes;
  }
  end_run();
  state_.term = fence_.term();
  ++state_.stored_number;
  state_.unapplied_bytes += stored.bytes.size();
  if (!stored.records.empty()) stored_.push_back(std::move(stored));
  return absl::OkStatus();
}

void Receiver::Append(const v1::AppendRequest& header, Bytes payload, Reply reply) {
  After after;
  {
    absl::MutexLock lock(&mutex_);
    const auto answer = [&](absl::StatusOr<v1::AppendResponse> response) {
      after.push_back([reply, response = std::move(response)] { reply(response); });
    };
    const AppendFence::Verdict verdict = fence_.Check(header.term(), header.primary(), header.follower());
    if (header.shard() != options_.shard) {
      answer(absl::FailedPreconditionError(absl::StrCat("the message is of shard ", header.shard(),
                                                        ", and this process has a copy of shard ",
                                                        options_.shard)));
    } else if (verdict == AppendFence::Verdict::kDeposed) {
      v1::AppendResponse response;
      response.set_term(fence_.term());
      answer(std::move(response));
    } else if (verdict == AppendFence::Verdict::kWrongCopy) {
      answer(absl::NotFoundError(absl::StrCat(
          "the message is from the primary ", header.primary(), " of term ", header.term(), " for the copy ",
          header.follower(), ", and this is ", Who(), " in term ", fence_.term(), ": that copy has ended")));
    } else if (verdict == AppendFence::Verdict::kClosed) {
      answer(absl::UnavailableError(absl::StrCat(Who(), ": ", why_closed_)));
    } else if (!state_.status.ok()) {
      answer(absl::FailedPreconditionError(absl::StrCat(Who(), ": ", state_.status.message())));
    } else if (header.number() > state_.stored_number + options_.window) {
      answer(absl::InvalidArgumentError(
          absl::StrCat(Who(), ": message ", header.number(), " came while message ", state_.stored_number + 1,
                       " is next, and at most ", options_.window, " may be under way")));
    } else {
      const absl::Time now = MonotonicNow();
      if (options_.on_heard && now - told_heard_ >= kHeardEvery) {
        told_heard_ = now;
        after.push_back(options_.on_heard);
      }
      state_.primary_position = std::max(state_.primary_position, header.position());
      MarkLocked(header);
      if (header.number() <= state_.stored_number) {  // a beat, or a message that came before
        answer(ResponseLocked());
      } else if (header.number() > state_.stored_number + 1) {
        Early& message = early_[header.number()];
        message.payload = std::move(payload);
        message.replies.push_back(std::move(reply));
      } else {
        std::vector<Reply> stored_replies;
        Early next{.payload = std::move(payload), .replies = {std::move(reply)}};
        while (true) {
          if (const absl::Status stored = StoreLocked(next.payload); !stored.ok()) {
            // It is not stored, and neither are those behind it, which wait for it.
            for (Reply& refused : next.replies) {
              after.push_back([refused = std::move(refused), stored] { refused(stored); });
            }
            break;
          }
          for (Reply& taken : next.replies) stored_replies.push_back(std::move(taken));
          const auto early = early_.find(state_.stored_number + 1);
          if (early == early_.end()) break;
          next = std::move(early->second);
          early_.erase(early);
        }
        AcknowledgeLocked();
        for (Reply& taken : stored_replies) {
          after.push_back([taken = std::move(taken), response = ResponseLocked()] { taken(response); });
        }
      }
    }
  }
  RunAll(std::move(after));
}

rpc::Method AppendMethod(Receiver* receiver) {
  const auto append = [receiver](const std::shared_ptr<rpc::ServerCall>& call) {
    v1::AppendRequest header;
    Bytes payload;
    const absl::Status decoded = rpc::DecodeBulk(call->request(), &header, &payload, kMaxAppendHeader);
    if (!decoded.ok()) return call->Finish(decoded);
    receiver->Append(header, std::move(payload), [call](absl::StatusOr<v1::AppendResponse> response) {
      if (!response.ok()) return call->Finish(response.status());
      call->Finish(Bytes(response->SerializeAsString()));
    });
  };
  return {"Append", rpc::Right::kReplica, append};
}

void Receiver::Run() {
  while (true) {
    Stored next;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &Receiver::HasWork));
      if (stopping_) return;
      next = std::move(stored_.front());
      stored_.pop_front();
      applying_ = true;
    }
    absl::Status status;
    bool complete = false;
    bool begins = false;  // with a state
    uint64_t position = 0;
    for (const Record& record : next.records) {
      if (record.kind == RecordKind::kEnd) {
        status = records_.Complete();
        complete = status.ok();
      } else {
        status = records_.Apply(record, next.bytes.owner());
        if (!IsOfCopy(record.kind) || record.kind == RecordKind::kState) position = record.position;
        begins = begins || record.kind == RecordKind::kState;
      }
      if (!status.ok()) break;
    }
    After after;
    {
      absl::MutexLock lock(&mutex_);
      state_.unapplied_bytes -= std::min<uint64_t>(state_.unapplied_bytes, next.bytes.size());
      if (status.ok()) {
        state_.applied_position = begins ? position : std::max(state_.applied_position, position);
        state_.complete = state_.complete || complete;
        RefreshLocked();
        if (complete && options_.on_complete) after.push_back(options_.on_complete);
        AcknowledgeLocked();
      } else {
        stored_.clear();
        FailLocked(status, &after);
      }
    }
    RunAll(std::move(after));
    after.clear();
    {
      absl::MutexLock lock(&mutex_);
      applying_ = false;  // not before: after Drop, nothing is told of the dropped copy
      if (stored_.empty()) {
        for (auto& done : on_applied_) {
          after.push_back([done = std::move(done), result = state_.status] { done(result); });
        }
        on_applied_.clear();
      }
    }
    RunAll(std::move(after));
  }
}

}  // namespace tandem::ps
