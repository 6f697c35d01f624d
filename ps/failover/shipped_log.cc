// SPDX-License-Identifier: Apache-2.0
#include "ps/failover/shipped_log.h"

#include <algorithm>
#include <stop_token>
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

void Run(std::vector<std::function<void()>> after) {
  for (const std::function<void()>& function : after) function();
}

}  // namespace

ShippedLog::ShippedLog(Options options, LogTail tail)
    : ChangeLog(options.max_queued_bytes),
      options_(std::move(options)),
      last_position_(options_.first_position - 1),
      wait_set_(options_.min_copies),
      tail_(std::move(tail)),
      tail_until_(absl::InfinitePast()) {
  absl::MutexLock lock(&mutex_);
  if (options_.base.term != 0) {
    tail_.SetMaxBytes(options_.max_tail_bytes);
    tail_until_ = MonotonicNow() + options_.keep_tail;
  }
  durable_position_ = wait_set_.Durable(last_position_);
  thread_ = std::thread([this] { Run(); });
}

ShippedLog::~ShippedLog() { Stop(); }

void ShippedLog::Stop() {
  StopSpace();
  {
    absl::MutexLock lock(&mutex_);
    if (stopping_) return;
    stopping_ = true;
    status_ = absl::UnavailableError("this server is not the primary of its shard any more, or is stopping");
    for (const std::shared_ptr<Link>& link : links_) {
      link->dropped = true;
      dropped_.push_back(link);
    }
    links_.clear();
  }
  thread_.join();
  std::deque<Waiting> waiting;
  std::vector<std::shared_ptr<Link>> dropped;
  std::vector<LinkStream::Sent> sent;
  absl::Status status;
  {
    absl::MutexLock lock(&mutex_);
    waiting.swap(waiting_);
    dropped.swap(dropped_);
    status = status_;
    for (Entry& entry : queue_) {
      if (entry.sent) sent.push_back(std::move(entry.sent));
    }
    queue_.clear();
    for (const std::shared_ptr<Link>& link : dropped) link->stream.Abandon(&sent);
  }
  for (const std::shared_ptr<Link>& link : dropped) link->channel.reset();  // ends its calls
  for (const LinkStream::Sent& one : sent) one(status);
  for (const Waiting& one : waiting) {
    if (one.durable) one.durable(status);
  }
}

// Links.

std::shared_ptr<ShippedLog::Link> ShippedLog::FindLocked(const std::string& id) const {
  const auto found = std::find_if(links_.begin(), links_.end(),
                                  [&](const std::shared_ptr<Link>& link) { return link->copy.id == id; });
  return found == links_.end() ? nullptr : *found;
}

absl::StatusOr<std::shared_ptr<ShippedLog::Link>> ShippedLog::LinkOfLocked(const std::string& id) const {
  std::shared_ptr<Link> link = FindLocked(id);
  if (link != nullptr && !link->gone) return link;
  return absl::NotFoundError(absl::StrCat("there is no link to the copy ", id));
}

absl::StatusOr<bool> ShippedLog::StartLink(const Copy& copy, std::unique_ptr<rpc::Channel> channel,
                                           absl::Time begin_at, std::function<void()> begin) {
  auto link = std::make_shared<Link>(copy, std::move(channel), options_);
  link->begin_at = begin_at;
  link->begin = std::move(begin);
  return AddLink(std::move(link), nullptr);
}

absl::StatusOr<bool> ShippedLog::ContinueLink(const Copy& copy, std::unique_ptr<rpc::Channel> channel,
                                              const Lineage& held) {
  return AddLink(std::make_shared<Link>(copy, std::move(channel), options_), &held);
}

absl::StatusOr<bool> ShippedLog::AddLink(std::shared_ptr<Link> link, const Lineage* held) {
  // A link that is not used is destroyed outside the lock.
  absl::MutexLock lock(&mutex_);
  if (stopping_) return absl::CancelledError("the log has stopped");
  if (FindLocked(link->copy.id) != nullptr) return false;
  if (held != nullptr) {
    if (!CanContinueLocked(*held)) {
      return absl::FailedPreconditionError(absl::StrCat(
          "the copy at ", link->copy.address, " has record ", held->position, " of term ", held->term,
          ", and the records behind it are not at hand any more: it must be copied"));
    }
    queue_.push_back({.position = held->position, .only = link, .continues = true});
  }
  link->heard = MonotonicNow();
  links_.push_back(link);
  wake_ = true;
  return true;
}

bool ShippedLog::CanContinueLocked(const Lineage& held) const {
  return tail_until_ > absl::InfinitePast() && ps::CanContinue(options_.base, held) &&
         tail_.Reaches(held.position);
}

bool ShippedLog::CanContinue(const Lineage& held) const {
  absl::MutexLock lock(&mutex_);
  return CanContinueLocked(held);
}

void ShippedLog::ContinueLocked(const std::shared_ptr<Link>& link, uint64_t held, After* after) {
  if (!CanContinueLocked({.term = options_.base.term, .position = held})) {
    return EndLinkLocked(
        link,
        absl::ResourceExhaustedError(absl::StrCat(
            "the records that the copy at ", link->copy.address,
            " lacks were forgotten before they were sent, because too much was pushed: it must be copied")),
        after);
  }
  link->stream.BeginWithoutState();
  const uint64_t base = options_.base.position;
  for (Slice& slice : tail_.Between(held, base))
    link->stream.Add({.records = std::move(slice), .live = true});
  std::string record;
  AppendRecord(RecordKind::kContinue, base, base, Bytes(options_.continue_body), &record);
  link->stream.Add({.records = Slice::FromString(std::move(record)), .end = true});
  for (Slice& slice : tail_.Between(base, tail_.last())) {
    link->stream.Add({.records = std::move(slice), .live = true});
  }
  link->stream.live = true;
}

void ShippedLog::SkipPosition() {
  After after;
  {
    absl::MutexLock lock(&mutex_);
    for (const std::shared_ptr<Link>& link : links_) {
      EndLinkLocked(link, absl::AbortedError("the primary has loaded other tables: copy again"), &after);
    }
    ++last_position_;
    tail_until_ = absl::InfinitePast();
    tail_.Restart(last_position_);
    AdvanceLocked(&after);
  }
  ps::Run(std::move(after));
}

void ShippedLog::DropLink(const std::string& id) {
  absl::MutexLock lock(&mutex_);
  const std::shared_ptr<Link> link = FindLocked(id);
  if (link == nullptr) return;
  link->dropped = true;
  links_.erase(std::find(links_.begin(), links_.end(), link));
  dropped_.push_back(link);
  wake_ = true;
}

absl::StatusOr<uint64_t> ShippedLog::BeginCopy(const std::string& id) {
  absl::MutexLock lock(&mutex_);
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<Link> link, LinkOfLocked(id));
  queue_.push_back({.only = link, .begins = true});
  return last_position_;
}

absl::Status ShippedLog::SendState(const std::string& id, std::string state) {
  absl::MutexLock lock(&mutex_);
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<Link> link, LinkOfLocked(id));
  link->stream.AddState(Slice::FromString(std::move(state)));
  wake_ = true;
  return absl::OkStatus();
}

absl::Status ShippedLog::SendCopied(const std::string& id, std::function<std::vector<std::string>()> encode,
                                    LinkStream::Sent sent) {
  absl::MutexLock lock(&mutex_);
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<Link> link, LinkOfLocked(id));
  queue_.push_back({.only = link, .copied = std::move(encode), .sent = std::move(sent)});
  return absl::OkStatus();
}

absl::Status ShippedLog::EndCopy(const std::string& id) {
  absl::MutexLock lock(&mutex_);
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<Link> link, LinkOfLocked(id));
  queue_.push_back({.kind = RecordKind::kEnd, .position = last_position_, .only = link});
  return absl::OkStatus();
}

void ShippedLog::FailLink(const std::string& id, const absl::Status& why) {
  After after;
  {
    absl::MutexLock lock(&mutex_);
    if (const std::shared_ptr<Link> link = FindLocked(id); link != nullptr) EndLinkLocked(link, why, &after);
  }
  ps::Run(std::move(after));
}

std::vector<LinkState> ShippedLog::links() const {
  std::vector<LinkState> states;
  absl::MutexLock lock(&mutex_);
  for (const std::shared_ptr<Link>& link : links_) {
    states.push_back({.copy = link->copy,
                      .complete = link->stream.complete(),
                      .stored_position = link->stored_position,
                      .applied_position = link->applied_position,
                      .unsent_bytes = link->stream.unstored_live_bytes(),
                      .heard = link->heard});
  }
  return states;
}

// The wait set.

absl::Status ShippedLog::Require(const std::string& id) {
  After after;
  {
    absl::MutexLock lock(&mutex_);
    TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<Link> link, LinkOfLocked(id));
    wait_set_.Require(id, link->stored_position);
    link->caught_up = false;
    StoredLocked(link, &after);
  }
  ps::Run(std::move(after));
  return absl::OkStatus();
}

void ShippedLog::Release(const std::string& id) {
  After after;
  {
    absl::MutexLock lock(&mutex_);
    wait_set_.Release(id);
    if (const std::shared_ptr<Link> link = FindLocked(id); link != nullptr) link->caught_up = true;
    AdvanceLocked(&after);
  }
  ps::Run(std::move(after));
}

void ShippedLog::Confirm(size_t in_sync) {
  After after;
  {
    absl::MutexLock lock(&mutex_);
    wait_set_.Confirm(in_sync);
    confirmed_ = in_sync;
    AdvanceLocked(&after);
  }
  ps::Run(std::move(after));
}

void ShippedLog::AdvanceLocked(After* after) {
  if (stopping_) return;
  durable_position_ = std::max(durable_position_, wait_set_.Durable(last_position_));
  if (!waiting_.empty() && waiting_.front().position <= durable_position_) waiting_since_ = MonotonicNow();
  while (!waiting_.empty() && waiting_.front().position <= durable_position_) {
    after->push_back([one = std::move(waiting_.front())] {
      if (one.durable) one.durable(absl::OkStatus());
    });
    waiting_.pop_front();
  }
}

// The ChangeLog.

uint64_t ShippedLog::Append(RecordKind kind, Bytes body, std::shared_ptr<Space> space, Durable durable) {
  uint64_t position;
  absl::Status now;  // with which `durable` runs here, if that is known
  bool known = true;
  {
    absl::MutexLock lock(&mutex_);
    position = ++last_position_;
    now = status_;
    if (now.ok()) {
      // Without a link nobody needs the record, unless a follower of the earlier primary comes.
      if (!links_.empty() || tail_until_ > absl::InfinitePast())
        queue_.push_back({.kind = kind, .position = position, .body = std::move(body)});
      known = waiting_.empty() && wait_set_.Durable(position) >= position;
      if (known) {
        durable_position_ = position;
      } else {
        if (waiting_.empty()) waiting_since_ = MonotonicNow();
        waiting_.push_back({position, std::move(space), std::move(durable)});
      }
    }
  }
  if (known && durable) durable(now);
  return position;
}

void ShippedLog::WhenDurable(Durable durable) {
  absl::Status now;
  {
    absl::MutexLock lock(&mutex_);
    now = status_;
    if (now.ok() && durable_position_ < last_position_) {
      if (waiting_.empty()) waiting_since_ = MonotonicNow();
      waiting_.push_back({last_position_, nullptr, std::move(durable)});
      return;
    }
  }
  durable(now);
}

uint64_t ShippedLog::last_position() const {
  absl::MutexLock lock(&mutex_);
  return last_position_;
}

uint64_t ShippedLog::durable_position() const {
  absl::MutexLock lock(&mutex_);
  return durable_position_;
}

absl::Status ShippedLog::status() const {
  absl::MutexLock lock(&mutex_);
  return status_;
}

std::string ShippedLog::waiting_for() const {
  const absl::Time now = MonotonicNow();
  absl::MutexLock lock(&mutex_);
  if (waiting_.empty() || now - waiting_since_ < options_.unusual) return "";
  if (confirmed_ + 1 < static_cast<size_t>(options_.min_copies)) {
    return absl::StrCat(confirmed_, " followers are in sync, and a push needs ", options_.min_copies,
                        " copies (--min-copies)");
  }
  const Link* slowest = nullptr;
  for (const std::shared_ptr<Link>& link : links_) {
    if (!wait_set_.IsRequired(link->copy.id) || link->stored_position >= last_position_) continue;
    if (slowest == nullptr || link->stored_position < slowest->stored_position) slowest = link.get();
  }
  if (slowest == nullptr) {
    return options_.min_copies > 1 ? "a follower is dead or cut off, and --min-copies needs another one"
                                   : "a follower that has gone is being removed";
  }
  return absl::StrCat("the follower at ", slowest->copy.address, " has stored record ",
                      slowest->stored_position, " of ", last_position_, ", and answered last ",
                      absl::FormatDuration(absl::Trunc(now - slowest->heard, absl::Milliseconds(1))), " ago");
}

// The thread.

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
  ps::Run(std::move(after));
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
    moment = {.position = last_position_, .durable = durable_position_, .leads = LeadsLocked(now)};
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
  ps::Run(std::move(after));
}

void ShippedLog::SetMayLead(bool may_lead) {
  absl::MutexLock lock(&mutex_);
  may_lead_ = may_lead;
}

bool ShippedLog::LeadsLocked(absl::Time now) const {
  if (!may_lead_) return false;
  size_t heard = 0;
  for (const std::shared_ptr<Link>& link : links_) {
    if (!wait_set_.IsRequired(link->copy.id)) continue;
    if (link->gone || now - link->heard >= options_.lease) return false;
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
  const absl::Time sent = MonotonicNow();
  const absl::Duration timeout =
      options_.call_timeout + absl::Seconds(1) * (static_cast<double>(payload.size()) / kSlowestLink);
  // The channel's own retries would send to a dead copy for as long as the time-out.
  link->channel->CallAsync(kAppend, rpc::EncodeBulk(header, std::move(payload)),
                           {.timeout = timeout, .idempotent = false},
                           [this, link, number, sent](absl::StatusOr<Bytes> answer) {
                             OnAnswer(link, number, sent, std::move(answer));
                           });
}

void ShippedLog::EndLinkLocked(const std::shared_ptr<Link>& link, const absl::Status& why, After* after) {
  if (link->gone || link->dropped) return;
  link->gone = true;
  std::vector<LinkStream::Sent> unsent;
  link->stream.Abandon(&unsent);
  for (LinkStream::Sent& one : unsent) {
    after->push_back([one = std::move(one), why] { one(why); });
  }
  if (options_.events.on_gone) {
    after->push_back([this, id = link->copy.id, why] { options_.events.on_gone(id, why); });
  }
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

void ShippedLog::OnAnswer(const std::shared_ptr<Link>& link, uint64_t number, absl::Time sent,
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
    if (!status.ok() && sent > link->failed_at) {
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
      link->heard = std::max(link->heard, sent);
      link->echo = std::max(link->echo, response.clock());
      const absl::Duration beat =
          response.beat_ms() == 0
              ? options_.beat
              : std::min(options_.beat, std::max(absl::Milliseconds(response.beat_ms()), kFastestBeat));
      wake_ = wake_ || beat < link->beat;
      link->beat = beat;
      link->stored_position = std::max(link->stored_position, response.stored_position());
      link->applied_position = std::max(link->applied_position, response.applied_position());
      if (sent - link->told_heard >= kTellHeardEvery) {
        link->told_heard = sent;
        if (options_.events.on_heard) {
          after.push_back([this, id = link->copy.id, sent] { options_.events.on_heard(id, sent); });
        }
      }
      StoredLocked(link, &after);
    }
    // The thread looks again if there is something to send now or, after a failure, at another time.
    wake_ = wake_ || number == 0 || !status.ok() || link->stream.CanSend();
  }
  ps::Run(std::move(after));
}

}  // namespace tandem::ps
