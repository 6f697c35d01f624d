// SPDX-License-Identifier: Apache-2.0
#include "collectives/backends/tcp/point_to_point.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/timed_wait.h"
#include "collectives/backends/tcp/exchange.h"

namespace tandem::collectives::tcp {
namespace {

constexpr uint64_t kMostBytes = uint64_t{1} << 48;  // of a message

MessageMatcher::Limits Limits() {
  return {.credit = PointToPoint::kCreditBytes,
          .largest_eager = PointToPoint::kEagerBytes,
          .overhead = sizeof(Frame),
          .credit_portion = PointToPoint::kCreditBytes / 4,
          .spare = PointToPoint::kSpareBytes};
}

// Returns the head that a frame of type kEager or kRequest contains.
absl::StatusOr<MessageMatcher::Head> HeadOf(const Frame& frame) {
  MessageMatcher::Head head;
  head.announced = frame.type == Frame::Type::kRequest;
  head.tag = static_cast<uint32_t>(frame.value);
  head.dtype = frame.fingerprint.dtype;
  head.id = frame.id;
  if (static_cast<uint8_t>(head.dtype) >= kNumDTypes || frame.fingerprint.count > kMostBytes / 16) {
    return absl::InvalidArgumentError("it sent a message of no known dtype or size");
  }
  head.bytes = frame.fingerprint.count * SizeOf(head.dtype);
  if (!head.announced && head.bytes != frame.bytes) {
    return absl::InvalidArgumentError("it sent a message of another size than its data");
  }
  return head;
}

}  // namespace

PointToPoint::PointToPoint(const std::string& group, int rank, int world_size, GiveUp give_up)
    : group_(group),
      rank_(rank),
      world_size_(world_size),
      give_up_(std::move(give_up)),
      matcher_(group, rank, world_size, Limits(), this),
      peers_(world_size) {}

void PointToPoint::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.SignalAll();
  }
  if (watcher_.joinable()) watcher_.join();
}

void PointToPoint::Start(const Operation& operation, Done done) {
  if (absl::Status status = CheckPeers(operation); !status.ok()) return done(status);
  Frame frame;
  const void* data = nullptr;
  bool send = false;
  {
    absl::MutexLock lock(&mutex_);
    auto owned = std::make_unique<Pending>(operation);
    Pending* const pending = owned.get();
    pending->id = next_id_++;
    pending->done = std::move(done);
    pending->deadline = MonotonicNow() + operation.timeout;
    pending_.emplace(pending->id, std::move(owned));
    if (!failed_.ok()) {
      Finish(pending, failed_);
    } else if (operation.kind == OpKind::kSend) {
      send = BeginSend(pending, &frame, &data);
    } else {
      matcher_.Receive(pending);
    }
    if (!pending_.empty()) Watch();
  }
  if (send && links_->Send(operation.root, frame, data)) FrameSent(operation.root, frame);
  TurnEnds();
}

absl::Status PointToPoint::CheckPeers(const Operation& operation) {
  int lost = kAnySource;
  const std::string here = absl::StrCat(Describe(operation), " on group '", group_, "'");
  {
    absl::MutexLock lock(&mutex_);
    if (!failed_.ok()) return failed_;
    for (int p = 0; p < world_size_; ++p) {
      if (peers_[p].lost && !peers_[p].left) lost = p;
    }
  }
  return lost == kAnySource ? absl::OkStatus() : give_up_(lost, absl::UnavailableError(here));
}

bool PointToPoint::BeginSend(Pending* send, Frame* frame, const void** data) {
  const Operation& operation = send->operation;
  const Peer& peer = peers_[operation.root];
  if (peer.left) {
    Finish(send, matcher_.HasLeft(operation, operation.root));
    return false;
  }
  const MessageMatcher::Head head = matcher_.Send(send);
  frame->type = head.announced ? Frame::Type::kRequest : Frame::Type::kEager;
  frame->bytes = head.announced ? 0 : send->bytes;
  frame->id = send->id;
  frame->value = operation.tag;
  frame->fingerprint = FingerprintOf(operation);
  *data = head.announced ? nullptr : operation.in.data;
  // If the peer was lost since CheckPeers, the watcher finds the reason, and ends what is pending.
  return !peer.lost;
}

void PointToPoint::Answer(int to, uint64_t id, bool wanted) {
  Frame grant;
  grant.type = Frame::Type::kGrant;
  grant.id = id;
  grant.value = wanted ? 1 : 0;
  responses_.emplace_back(to, grant);
}

void PointToPoint::ReturnCredit(int to, uint64_t bytes) {
  Frame credit;
  credit.type = Frame::Type::kCredit;
  credit.value = bytes;
  responses_.emplace_back(to, credit);
}

absl::StatusOr<char*> PointToPoint::FrameBegins(int p, const Frame& frame) {
  absl::MutexLock lock(&mutex_);
  switch (frame.type) {
    case Frame::Type::kEager: {
      TANDEM_ASSIGN_OR_RETURN(const MessageMatcher::Head head, HeadOf(frame));
      if (!matcher_.BeginEager(p, head)) {
        return absl::InvalidArgumentError("it sent more data unasked than it may");
      }
      if (char* const to = matcher_.Destination(p); to != nullptr) return to;
      peers_[p].dropped.reset(new char[frame.bytes]);
      return peers_[p].dropped.get();
    }
    case Frame::Type::kPayload:
      if (!matcher_.BeginGranted(p, frame.id, frame.bytes)) {
        return absl::InvalidArgumentError("it sent data that nobody awaits");
      }
      return matcher_.Destination(p);
    case Frame::Type::kRequest:
      TANDEM_RETURN_IF_ERROR(HeadOf(frame).status());
      if (frame.bytes == 0) return nullptr;
      break;
    case Frame::Type::kCredit:
      if (frame.bytes == 0 && matcher_.CreditReturned(p, frame.value)) return nullptr;
      break;
    case Frame::Type::kGrant:
      if (frame.bytes == 0) return nullptr;
      break;
    default:
      break;
  }
  return absl::InvalidArgumentError("it sent a frame of no known type");
}

void PointToPoint::FrameEnds(int p, const Frame& frame) {
  absl::ReleasableMutexLock lock(&mutex_);
  switch (frame.type) {
    case Frame::Type::kEager:
    case Frame::Type::kPayload:
      matcher_.Complete(p);
      peers_[p].dropped.reset();
      return;
    case Frame::Type::kRequest:
      if (const absl::StatusOr<MessageMatcher::Head> head = HeadOf(frame); head.ok()) {
        matcher_.Announced(p, *head);
      }
      return;
    case Frame::Type::kGrant: {
      MessageTransfer* const send = matcher_.TakeAnnounced(p, frame.id);
      if (send == nullptr) return;
      // The receiver reported why it refused; a send may be done before it is received.
      if (frame.value == 0) return Finish(send, rank_);
      const char* const data = static_cast<const char*>(send->operation.in.data);
      const size_t bytes = send->bytes;
      lock.Release();
      return SendPayload(p, frame.id, data, bytes);
    }
    default:
      return;
  }
}

void PointToPoint::SendPayload(int p, uint64_t id, const char* data, size_t bytes) {
  size_t offset = 0;
  do {
    Frame frame;
    frame.type = Frame::Type::kPayload;
    frame.id = id;
    frame.bytes = std::min(kChunkBytes, bytes - offset);
    if (links_->Send(p, frame, data + offset)) FrameSent(p, frame);
    offset += frame.bytes;
  } while (offset < bytes);
}

void PointToPoint::FrameSent(int, const Frame& frame) {
  if (frame.type != Frame::Type::kEager && frame.type != Frame::Type::kPayload) return;
  absl::MutexLock lock(&mutex_);
  const auto found = pending_.find(frame.id);
  if (found == pending_.end()) return;
  Pending* const send = found->second.get();
  send->moved += frame.bytes;
  if (send->moved == send->bytes) Finish(send, rank_);
}

void PointToPoint::LinkLost(int p, bool left) {
  absl::MutexLock lock(&mutex_);
  peers_[p].lost = true;
  peers_[p].left = left;
  // Before any memory is released, WatchLoop or the next call closes all links.
  if (!left) return changed_.SignalAll();
  // A leaving rank fails only the operations that involve it.
  matcher_.PeerLeft(p);
  for (auto one = pending_.begin(); one != pending_.end();) {
    Pending* const pending = (one++)->second.get();
    const Operation& operation = pending->operation;
    if (operation.kind == OpKind::kSend && operation.root == p)
      Finish(pending, matcher_.HasLeft(operation, p));
  }
}

void PointToPoint::Finish(MessageTransfer* transfer, absl::StatusOr<int> result) {
  const auto found = pending_.find(transfer->id);
  finished_.emplace_back(std::move(found->second->done), std::move(result));
  pending_.erase(found);
}

void PointToPoint::TurnEnds() {
  Finished finished;
  std::vector<std::pair<int, Frame>> responses;
  {
    absl::MutexLock lock(&mutex_);
    if (finished_.empty() && responses_.empty()) return;
    finished.swap(finished_);
    responses.swap(responses_);
  }
  for (const auto& [peer, frame] : responses) links_->Send(peer, frame, nullptr);
  for (auto& [done, result] : finished) done(std::move(result));
}

void PointToPoint::Fail(const absl::Status& reason) {
  {
    absl::MutexLock lock(&mutex_);
    if (failed_.ok()) failed_ = reason;
    matcher_.EndAll(failed_);
    while (!pending_.empty()) Finish(pending_.begin()->second.get(), failed_);  // sends on their way
    changed_.SignalAll();
  }
  TurnEnds();
}

void PointToPoint::Watch() {
  if (!watching_) {
    watching_ = true;
    watcher_ = std::thread([this] { WatchLoop(); });
  } else {
    changed_.SignalAll();
  }
}

void PointToPoint::WatchLoop() {
  absl::ReleasableMutexLock lock(&mutex_);
  while (!stopping_ && failed_.ok()) {
    absl::Time deadline = absl::InfiniteFuture();
    std::string here, whom;
    for (const auto& [id, one] : pending_) {
      if (one->deadline >= deadline) continue;
      deadline = one->deadline;
      const Operation& operation = one->operation;
      here = absl::StrCat(Describe(operation), " on group '", group_, "'");
      const int other = operation.root == kAnySource ? one->source : operation.root;
      whom = other == kAnySource
                 ? "no rank has sent"
                 : absl::StrCat("rank ", other,
                                operation.kind == OpKind::kSend ? " has not received" : " has not sent");
    }
    int lost = kAnySource;
    for (int p = 0; p < world_size_; ++p) {
      if (peers_[p].lost && !peers_[p].left) lost = p;
    }
    if (lost != kAnySource && !pending_.empty()) {
      here = absl::StrCat(Describe(pending_.begin()->second->operation), " on group '", group_, "'");
      lock.Release();
      (void)give_up_(lost, absl::UnavailableError(here));
      return;
    }
    if (MonotonicNow() >= deadline) {
      lock.Release();
      (void)give_up_(kAnySource, absl::DeadlineExceededError(absl::StrCat(here, ": ", whom, " in time")));
      return;
    }
    tandem::WaitUntil(&changed_, &mutex_, deadline);
  }
}

}  // namespace tandem::collectives::tcp
