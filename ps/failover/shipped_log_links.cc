// SPDX-License-Identifier: Apache-2.0
#include "ps/failover/shipped_log.h"

// The links: how they begin, are continued or copied, and end.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"

namespace tandem::ps {

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
    link->continues = true;
  }
  link->heard = MonotonicNow();
  link->lease_from = options_.boot_time();
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
  RunAll(after);
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
  RunAll(after);
}

std::vector<LinkState> ShippedLog::links() const {
  std::vector<LinkState> states;
  absl::MutexLock lock(&mutex_);
  for (const std::shared_ptr<Link>& link : links_) {
    states.push_back({.copy = link->copy,
                      .complete = link->stream.complete(),
                      .continued = link->continues,
                      .stored_position = link->stored_position,
                      .applied_position = link->applied_position,
                      .unsent_bytes = link->stream.unstored_live_bytes(),
                      .heard = link->heard});
  }
  return states;
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

}  // namespace tandem::ps
