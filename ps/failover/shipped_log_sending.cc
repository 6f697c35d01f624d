// SPDX-License-Identifier: Apache-2.0
#include "ps/failover/shipped_log.h"

// The thread: encodes the records, sends messages on all links, and heeds their answers.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/timed_wait.h"
#include "rpc/wire/bulk_codec.h"
#include "tandem/v1/failover.pb.h"

namespace tandem::ps {
namespace {

constexpr absl::string_view kAppend = "/tandem.v1.Failover/Append";
// A message is sent again after this time, which doubles with each failure in a row.
constexpr absl::Duration kRetry = absl::Milliseconds(20);
constexpr absl::Duration kLongestRetry = absl::Milliseconds(500);
// A message that is received, but not acknowledged, is not sent again before this time: beats say more.
constexpr absl::Duration kAwaitBeats = absl::Seconds(10);
constexpr double kSlowestLink = 8 << 20;  // bytes/s
constexpr absl::Duration kTellHeardEvery = absl::Milliseconds(20);
constexpr absl::Duration kFastestBeat = absl::Milliseconds(5);

// Returns whether a later attempt may succeed: the copy was not reached, or could not answer in time.
bool MayPass(const absl::Status& error) {
  return absl::IsUnavailable(error) || absl::IsDeadlineExceeded(error);
}

}  // namespace

absl::Time ShippedLog::NextWake() const {
  absl::Time next = tail_until_ > absl::InfinitePast() ? tail_until_ : absl::InfiniteFuture();
  for (const std::shared_ptr<Link>& link : links_) {
    if (link->gone) continue;
    next = std::min(next, link->stream.RetryTime());
    if (link->begin) next = std::min(next, link->begin_at);
    if (!link->beat_under_way) next = std::min(next, link->last_sent + link->beat);
  }
  return next;
}

void ShippedLog::Run() {
  while (true) {
    std::deque<Entry> entries;
    std::vector<std::shared_ptr<Link>> dropped;
    std::vector<LinkStream::Sent> unsent;
    uint64_t durable = 0;
    {
      absl::MutexLock lock(&mutex_);
      AwaitUntil(&mutex_, absl::Condition(this, &ShippedLog::HasWork), NextWake());
      if (stopping_) return;
      wake_ = false;
      durable = durable_position_;
      if (tail_until_ > absl::InfinitePast() && tail_until_ <= MonotonicNow()) {
        tail_until_ = absl::InfinitePast();
        tail_.Restart(last_position_);
      }
      dropped.swap(dropped_);
      for (const std::shared_ptr<Link>& link : dropped) link->stream.Abandon(&unsent);
      size_t bytes = 0;
      while (!queue_.empty() && bytes < options_.message_bytes) {
        bytes += RecordBytes(queue_.front().body.size());
        entries.push_back(std::move(queue_.front()));
        queue_.pop_front();
      }
    }
    for (const std::shared_ptr<Link>& link : dropped) link->channel.reset();  // ends its calls
    for (const LinkStream::Sent& one : unsent) one(absl::CancelledError("the link was dropped"));
    Encode(std::move(entries), durable);
    Send();
  }
}

void ShippedLog::Encode(std::deque<Entry> entries, uint64_t durable) {
  if (entries.empty()) return;
  std::vector<LinkStream::Sent> unsent;
  After after;
  // Encodes entries [first, last), which are records for all live links.
  const auto encode = [&](size_t first, size_t last) {
    size_t bytes = 0;
    for (size_t i = first; i < last; ++i) bytes += RecordBytes(entries[i].body.size());
    if (bytes == 0) return;
    const std::shared_ptr<char> records = buffers_.Get(bytes);
    char* to = records.get();
    for (size_t i = first; i < last; ++i) {
      Entry& entry = entries[i];
      WriteRecord(entry.kind, entry.position, durable, entry.body, to);
      to += RecordBytes(entry.body.size());
      entry.body = Bytes();
    }
    const Slice slice(records, records.get(), bytes);
    absl::MutexLock lock(&mutex_);
    if (tail_until_ > absl::InfinitePast()) {
      tail_.Add(entries[first].position, entries[last - 1].position, slice);
    }
    for (const std::shared_ptr<Link>& link : links_) {
      if (!link->stream.live || link->gone) continue;
      link->stream.Add({.records = slice, .live = true});
      // A follower in the wait set is bounded by the space of the queue: pushes wait for it.
      if (link->stream.unstored_live_bytes() > options_.max_link_bytes &&
          !wait_set_.IsRequired(link->copy.id)) {
        EndLinkLocked(link,
                      absl::ResourceExhaustedError(absl::StrCat(
                          "the copy at ", link->copy.address, " has not stored ",
                          link->stream.unstored_live_bytes(), " bytes of records, and at most ",
                          options_.max_link_bytes, " may wait: it is too slow, or does not answer")),
                      &after);
      }
    }
  };
  size_t first = 0;  // of the records that are not encoded
  for (size_t i = 0; i < entries.size(); ++i) {
    Entry& entry = entries[i];
    if (entry.only == nullptr) continue;
    encode(first, i);
    first = i + 1;
    std::vector<std::string> copied;
    if (entry.copied) copied = entry.copied();
    absl::MutexLock lock(&mutex_);
    LinkStream& stream = entry.only->stream;
    if (entry.only->dropped || entry.only->gone) {
      if (entry.sent) unsent.push_back(std::move(entry.sent));
      continue;
    }
    if (entry.begins) stream.live = true;
    if (entry.continues) ContinueLocked(entry.only, entry.position, &after);
    if (entry.kind == RecordKind::kEnd) {
      std::string end;
      AppendRecord(RecordKind::kEnd, entry.position, durable, Bytes(), &end);
      stream.Add({.records = Slice::FromString(std::move(end)), .end = true});
    }
    for (size_t i = 0; i < copied.size(); ++i) {
      const bool last = i + 1 == copied.size();
      stream.Add({.records = Slice::FromString(std::move(copied[i])),
                  .sent = last ? std::move(entry.sent) : nullptr});
    }
  }
  encode(first, entries.size());
  for (const LinkStream::Sent& one : unsent) one(absl::CancelledError("the link has ended"));
  RunAll(after);
}

void ShippedLog::Send() {
  struct Outgoing {
    std::shared_ptr<Link> link;
    uint64_t number;
    Bytes payload;
    uint64_t echo;
  };
  std::vector<Outgoing> outgoing;
  std::vector<LinkStream::Sent> sent;
  After after;
  Moment moment;
  {
    absl::MutexLock lock(&mutex_);
    const absl::Time now = MonotonicNow();
    moment = {.position = last_position_, .durable = durable_position_, .leads = LeadsLocked()};
    for (const std::shared_ptr<Link>& link : links_) {
      if (now - link->heard > options_.max_silence && !wait_set_.IsRequired(link->copy.id)) {
        EndLinkLocked(link,
                      absl::DeadlineExceededError(
                          absl::StrCat("the copy at ", link->copy.address, " has not answered for ",
                                       absl::FormatDuration(options_.max_silence), ": it is taken for dead")),
                      &after);
      }
      if (link->gone) continue;
      if (link->begin && link->begin_at <= now) after.push_back(std::exchange(link->begin, nullptr));
      const std::vector<const LinkStream::Message*> messages = link->stream.Take(now, &sent);
      for (const LinkStream::Message* message : messages) {
        outgoing.push_back({link, message->number, message->payload, link->echo});
      }
      if (!messages.empty()) {
        link->last_sent = now;
      } else if (!link->beat_under_way && link->last_sent + link->beat <= now) {
        link->beat_under_way = true;
        link->last_sent = now;
        outgoing.push_back({link, 0, Bytes(), link->echo});
      }
    }
  }
  for (Outgoing& one : outgoing) {
    SendMessage(one.link, one.number, std::move(one.payload), moment, one.echo);
  }
  for (const LinkStream::Sent& one : sent) one(absl::OkStatus());
  RunAll(after);
}

void ShippedLog::SetMayLead(bool may_lead) {
  absl::MutexLock lock(&mutex_);
  may_lead_ = may_lead;
}

bool ShippedLog::LeadsLocked() const {
  if (!may_lead_) return false;
  const absl::Time now = options_.boot_time();
  size_t heard = 0;
  for (const std::shared_ptr<Link>& link : links_) {
    if (!wait_set_.IsRequired(link->copy.id)) continue;
    if (link->gone || now - link->lease_from >= options_.lease) return false;
    ++heard;
  }
  return heard == wait_set_.size();  // a required copy without a link is not heard
}

void ShippedLog::SendMessage(const std::shared_ptr<Link>& link, uint64_t number, Bytes payload,
                             const Moment& moment, uint64_t echo) {
  v1::AppendRequest header;
  header.set_shard(options_.shard);
  header.set_term(options_.term);
  header.set_primary(options_.primary);
  header.set_follower(link->copy.id);
  header.set_number(number);
  header.set_position(moment.position);
  header.set_durable_position(moment.durable);
  header.set_leads(moment.leads);
  header.set_echo(echo);
  const ClockReading sent{.monotonic = MonotonicNow(), .boot = options_.boot_time()};
  const absl::Duration timeout =
      options_.call_timeout + absl::Seconds(1) * (static_cast<double>(payload.size()) / kSlowestLink);
  // The channel's own retries would send to a dead copy for as long as the time-out.
  link->channel->CallAsync(kAppend, rpc::EncodeBulk(header, std::move(payload)),
                           {.timeout = timeout, .idempotent = false},
                           [this, link, number, sent](absl::StatusOr<Bytes> answer) {
                             OnAnswer(link, number, sent, std::move(answer));
                           });
}

void ShippedLog::StoredLocked(const std::shared_ptr<Link>& link, After* after) {
  const std::string& id = link->copy.id;
  wait_set_.SetStored(id, link->stored_position);
  if (!link->caught_up && wait_set_.HasCaughtUp(id)) {
    link->caught_up = true;
    if (options_.events.on_caught_up) {
      after->push_back([this, id] { options_.events.on_caught_up(id); });
    }
  }
  if (!link->completed && link->stream.complete()) {
    link->completed = true;
    if (options_.events.on_complete) {
      after->push_back([this, id] { options_.events.on_complete(id); });
    }
  }
  AdvanceLocked(after);
}

void ShippedLog::OnAnswer(const std::shared_ptr<Link>& link, uint64_t number, const ClockReading& sent,
                          absl::StatusOr<Bytes> answer) {
  v1::AppendResponse response;
  absl::Status status = answer.status();
  if (status.ok() && !response.ParseFromString(answer->Flatten())) {
    status = absl::InternalError(absl::StrCat("the copy at ", link->copy.address, " gave an answer to ",
                                              kAppend, " that does not parse"));
  }
  After after;
  {
    absl::MutexLock lock(&mutex_);
    if (link->dropped || link->gone) return;
    if (number == 0) link->beat_under_way = false;
    if (status.ok()) link->failures = 0;
    if (!status.ok() && sent.monotonic > link->failed_at) {
      link->failures = std::min(link->failures + 1, 10);
      link->failed_at = MonotonicNow();
    }
    if (!status.ok()) {
      // Answers to other messages make room. A message that is refused alone is too large.
      const bool awaits_room =
          absl::IsResourceExhausted(status) && (number == 0 || link->stream.in_flight() > 1);
      if (MayPass(status) || awaits_room) {
        const int doublings = std::max(link->failures, 1) - 1;
        const absl::Duration retry = std::min(kRetry * (1 << doublings), kLongestRetry);
        if (number != 0) link->stream.Failed(number, MonotonicNow() + retry);
      } else {
        EndLinkLocked(link, status, &after);
      }
    } else if (response.term() > options_.term) {
      if (options_.events.on_higher_term) {
        after.push_back(
            [this, id = link->copy.id, term = response.term()] { options_.events.on_higher_term(id, term); });
      }
      if (number != 0) link->stream.Failed(number, MonotonicNow() + options_.beat);
    } else if (response.stored_position() > last_position_ ||
               !link->stream.SetStored(response.stored_number())) {
      EndLinkLocked(link,
                    absl::InternalError(absl::StrCat(
                        "the copy at ", link->copy.address, " says that it has stored message ",
                        response.stored_number(), " and record ", response.stored_position(),
                        ", which this primary has not sent: its last record is ", last_position_)),
                    &after);
    } else {
      // The copy acknowledges later, because too much of what it has is not applied.
      if (number > response.stored_number()) link->stream.Failed(number, MonotonicNow() + kAwaitBeats);
      link->heard = std::max(link->heard, sent.monotonic);
      link->lease_from = std::max(link->lease_from, sent.boot);
      link->echo = std::max(link->echo, response.clock());
      const absl::Duration beat =
          response.beat_ms() == 0
              ? options_.beat
              : std::min(options_.beat, std::max(absl::Milliseconds(response.beat_ms()), kFastestBeat));
      wake_ = wake_ || beat < link->beat;
      link->beat = beat;
      link->stored_position = std::max(link->stored_position, response.stored_position());
      link->applied_position = std::max(link->applied_position, response.applied_position());
      if (sent.monotonic - link->told_heard >= kTellHeardEvery) {
        link->told_heard = sent.monotonic;
        if (options_.events.on_heard) {
          after.push_back([this, id = link->copy.id, sent] { options_.events.on_heard(id, sent); });
        }
      }
      StoredLocked(link, &after);
    }
    // The thread looks again if there is something to send now or, after a failure, at another time.
    wake_ = wake_ || number == 0 || !status.ok() || link->stream.CanSend();
  }
  RunAll(after);
}

}  // namespace tandem::ps
