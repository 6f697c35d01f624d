// SPDX-License-Identifier: Apache-2.0
#include "collectives/backends/tcp/point_to_point.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/timed_wait.h"
#include "collectives/backends/tcp/exchange.h"

namespace tandem::collectives::tcp {
namespace {

// Returns the memory that an eager message occupies at its receiver.
size_t Cost(const Frame& frame) { return frame.bytes + sizeof(Frame); }

size_t BytesOf(const Operation& operation) {
  return (operation.kind == OpKind::kSend ? operation.in.count : operation.out.count) *
         SizeOf(operation.dtype);
}

}  // namespace

PointToPoint::PointToPoint(const std::string& group, int rank, int world_size, GiveUp give_up)
    : group_(group), rank_(rank), world_size_(world_size), give_up_(std::move(give_up)), peers_(world_size) {}

void PointToPoint::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.SignalAll();
  }
  if (watcher_.joinable()) watcher_.join();
}

void PointToPoint::Start(const Operation& operation, Done done) {
  Pending pending;
  pending.operation = operation;
  pending.done = std::move(done);
  pending.deadline = MonotonicNow() + operation.timeout;
  if (absl::Status status = CheckPeers(operation); !status.ok()) return pending.done(status);
  operation.kind == OpKind::kSend ? StartSend(std::move(pending)) : StartReceive(std::move(pending));
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

void PointToPoint::StartSend(Pending pending) {
  const Operation& operation = pending.operation;
  const int to = operation.root;
  Frame frame;
  frame.value = operation.tag;
  frame.fingerprint = FingerprintOf(operation);
  frame.bytes = BytesOf(operation);
  const void* data = operation.in.data;
  {
    absl::MutexLock lock(&mutex_);
    Peer& peer = peers_[to];
    if (!failed_.ok()) return Finish(std::move(pending), failed_);
    if (peer.left) {
      return Finish(std::move(pending),
                    absl::UnavailableError(absl::StrCat(Describe(operation), " on group '", group_,
                                                        "': rank ", to, " has left the group")));
    }
    frame.id = pending.id = next_id_++;
    const bool eager = frame.bytes <= kEagerBytes && peer.unanswered + Cost(frame) <= kCreditBytes;
    frame.type = eager ? Frame::Type::kEager : Frame::Type::kRequest;
    if (eager) {
      peer.unanswered += Cost(frame);
    } else {
      frame.bytes = 0;
      data = nullptr;
    }
    const bool lost = peer.lost;  // since CheckPeers: the watcher finds the reason, and ends what is pending
    sending_.emplace(pending.id, std::move(pending));
    Watch();
    if (lost) return;
  }
  const bool sent = links_->Send(to, frame, data);
  if (sent) FrameSent(to, frame);
}

void PointToPoint::StartReceive(Pending pending) {
  absl::ReleasableMutexLock lock(&mutex_);
  if (!failed_.ok()) return Finish(std::move(pending), failed_);
  pending.id = next_id_++;
  const int from = pending.operation.root;
  for (auto message = unexpected_.begin(); message != unexpected_.end(); ++message) {
    if (message->receive || !Matches(pending.operation, message->source, message->frame)) continue;
    const int source = message->source;
    if (message->frame.type == Frame::Type::kRequest) {
      const Frame grant = Grant(source, message->frame, std::move(pending));
      unexpected_.erase(message);
      Watch();
      lock.Release();
      links_->Send(source, grant, nullptr);
      return;
    }
    if (message->complete) {
      Deliver(&*message, std::move(pending));
      unexpected_.erase(message);
    } else {
      message->receive = std::move(pending);
    }
    return;
  }
  if (from != kAnySource && peers_[from].left) {
    const std::string text = absl::StrCat(Describe(pending.operation), " on group '", group_, "': rank ",
                                          from, " has left the group");
    return Finish(std::move(pending), absl::UnavailableError(text));
  }
  posted_.push_back(std::move(pending));
  Watch();
}

bool PointToPoint::Matches(const Operation& receive, int source, const Frame& frame) {
  if (frame.type == Frame::Type::kEager || frame.type == Frame::Type::kRequest) {
    return (receive.root == kAnySource || receive.root == source) && receive.tag == frame.value;
  }
  return false;
}

absl::Status PointToPoint::CheckFits(const Operation& receive, int source, const Frame& frame) {
  const Fingerprint& theirs = frame.fingerprint;
  const bool whole = frame.type == Frame::Type::kRequest || frame.bytes == BytesOf(receive);
  if (theirs.dtype == receive.dtype && theirs.count == receive.out.count && whole) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("rank ", source, " calls ", Describe(theirs),
                                                 ", but the rank that receives it calls ", Describe(receive),
                                                 "; both must give the same count and dtype (the message is "
                                                 "dropped)"));
}

absl::optional<PointToPoint::Pending> PointToPoint::TakePosted(int source, const Frame& frame) {
  for (auto one = posted_.begin(); one != posted_.end(); ++one) {
    if (!Matches(one->operation, source, frame)) continue;
    Pending taken = std::move(*one);
    posted_.erase(one);
    taken.peer = source;
    return taken;
  }
  return absl::nullopt;
}

Frame PointToPoint::Grant(int source, const Frame& request, Pending receive) {
  Frame grant;
  grant.type = Frame::Type::kGrant;
  grant.id = request.id;
  absl::Status fits = CheckFits(receive.operation, source, request);
  if (!fits.ok()) {
    Finish(std::move(receive), std::move(fits));
    return grant;
  }
  receive.peer = source;
  grant.value = receive.id;
  receiving_.emplace(receive.id, std::move(receive));
  return grant;
}

void PointToPoint::Deliver(Message* message, Pending receive) {
  absl::Status fits = CheckFits(receive.operation, message->source, message->frame);
  if (fits.ok() && message->frame.bytes > 0) {
    std::memcpy(receive.operation.out.data, message->bytes.get(), message->frame.bytes);
  }
  Taken(message->source, message->frame);
  if (fits.ok()) {
    Finish(std::move(receive), message->source);
  } else {
    Finish(std::move(receive), std::move(fits));
  }
}

void PointToPoint::Taken(int source, const Frame& frame) {
  Peer& peer = peers_[source];
  peer.taken += Cost(frame);
  if (peer.taken < kCreditBytes / 4) return;
  Frame credit;
  credit.type = Frame::Type::kCredit;
  credit.value = peer.taken;
  peer.taken = 0;
  responses_.emplace_back(source, credit);
}

absl::StatusOr<char*> PointToPoint::FrameBegins(int p, const Frame& frame) {
  absl::MutexLock lock(&mutex_);
  Peer& peer = peers_[p];
  switch (frame.type) {
    case Frame::Type::kEager: {
      if (frame.bytes > kEagerBytes) return absl::InvalidArgumentError("it sent too large a message unasked");
      absl::optional<Pending> receive = TakePosted(p, frame);
      if (receive && CheckFits(receive->operation, p, frame).ok()) {
        peer.direct = std::move(receive);
        return static_cast<char*>(peer.direct->operation.out.data);
      }
      unexpected_.push_back(Message{p, frame, std::unique_ptr<char[]>(new char[frame.bytes]), false, {}});
      peer.message = &unexpected_.back();
      peer.message->receive = std::move(receive);
      return peer.message->bytes.get();
    }
    case Frame::Type::kPayload: {
      auto found = receiving_.find(frame.id);
      if (found == receiving_.end() || found->second.peer != p ||
          frame.bytes > BytesOf(found->second.operation) - found->second.moved) {
        return absl::InvalidArgumentError("it sent data that nobody awaits");
      }
      return static_cast<char*>(found->second.operation.out.data) + found->second.moved;
    }
    case Frame::Type::kRequest:
    case Frame::Type::kGrant:
    case Frame::Type::kCredit:
      if (frame.bytes == 0) return nullptr;
      break;
    default:
      break;
  }
  return absl::InvalidArgumentError("it sent a frame of no known type");
}

void PointToPoint::FrameEnds(int p, const Frame& frame) {
  absl::ReleasableMutexLock lock(&mutex_);
  Peer& peer = peers_[p];
  switch (frame.type) {
    case Frame::Type::kEager:
      if (peer.direct) {
        Pending receive = *std::exchange(peer.direct, absl::nullopt);
        Taken(p, frame);
        Finish(std::move(receive), p);
        return;
      }
      peer.message->complete = true;
      if (peer.message->receive) {
        Deliver(peer.message, *std::exchange(peer.message->receive, absl::nullopt));
        unexpected_.remove_if([&](const Message& one) { return &one == peer.message; });
      }
      peer.message = nullptr;
      return;
    case Frame::Type::kRequest:
      if (absl::optional<Pending> receive = TakePosted(p, frame)) {
        responses_.emplace_back(p, Grant(p, frame, *std::move(receive)));
      } else {
        unexpected_.push_back(Message{p, frame, nullptr, true, {}});
      }
      return;
    case Frame::Type::kPayload: {
      auto found = receiving_.find(frame.id);
      found->second.moved += frame.bytes;
      if (found->second.moved < BytesOf(found->second.operation)) return;
      Pending receive = std::move(found->second);
      receiving_.erase(found);
      Finish(std::move(receive), p);
      return;
    }
    case Frame::Type::kGrant:
      lock.Release();
      SendPayload(p, frame.id, frame.value);
      return;
    case Frame::Type::kCredit:
      peer.unanswered -= std::min<size_t>(peer.unanswered, frame.value);
      return;
    default:
      return;
  }
}

void PointToPoint::SendPayload(int p, uint64_t send_id, uint64_t receive_id) {
  const char* data = nullptr;
  size_t bytes = 0;
  {
    absl::MutexLock lock(&mutex_);
    auto found = sending_.find(send_id);
    if (found == sending_.end() || found->second.operation.root != p) return;
    if (receive_id == 0) {  // the receiver reported why; a send may be done before it is received
      Pending send = std::move(found->second);
      sending_.erase(found);
      return Finish(std::move(send), rank_);
    }
    data = static_cast<const char*>(found->second.operation.in.data);
    bytes = BytesOf(found->second.operation);
  }
  size_t offset = 0;
  do {
    Frame frame;
    frame.type = Frame::Type::kPayload;
    frame.id = receive_id;
    frame.value = send_id;
    frame.bytes = std::min(kChunkBytes, bytes - offset);
    if (links_->Send(p, frame, data + offset)) FrameSent(p, frame);
    offset += frame.bytes;
  } while (offset < bytes);
}

void PointToPoint::FrameSent(int, const Frame& frame) {
  absl::MutexLock lock(&mutex_);
  if (frame.type == Frame::Type::kEager) AddSent(frame.id, frame.bytes);
  if (frame.type == Frame::Type::kPayload) AddSent(frame.value, frame.bytes);
}

void PointToPoint::AddSent(uint64_t id, size_t bytes) {
  auto found = sending_.find(id);
  if (found == sending_.end()) return;
  found->second.moved += bytes;
  if (found->second.moved < BytesOf(found->second.operation)) return;
  Pending send = std::move(found->second);
  sending_.erase(found);
  Finish(std::move(send), rank_);
}

void PointToPoint::LinkLost(int p, bool left) {
  absl::MutexLock lock(&mutex_);
  peers_[p].lost = true;
  peers_[p].left = left;
  // Before any memory is released, WatchLoop or the next call closes all links.
  if (!left) return changed_.SignalAll();
  // A leaving rank fails only the operations that involve it.
  auto end = [&](Pending pending) {
    const std::string text = absl::StrCat(Describe(pending.operation), " on group '", group_, "': rank ", p,
                                          " has left the group");
    Finish(std::move(pending), absl::UnavailableError(text));
  };
  for (auto one = posted_.begin(); one != posted_.end();) {
    const auto next = std::next(one);
    if (one->operation.root == p) {
      end(std::move(*one));
      posted_.erase(one);
    }
    one = next;
  }
  for (auto one = receiving_.begin(); one != receiving_.end();) {
    const auto next = std::next(one);
    if (one->second.peer == p) {
      end(std::move(one->second));
      receiving_.erase(one);
    }
    one = next;
  }
  for (auto one = sending_.begin(); one != sending_.end();) {
    const auto next = std::next(one);
    if (one->second.operation.root == p) {
      end(std::move(one->second));
      sending_.erase(one);
    }
    one = next;
  }
  if (peers_[p].direct) end(*std::exchange(peers_[p].direct, absl::nullopt));
  if (Message* message = std::exchange(peers_[p].message, nullptr); message != nullptr) {
    if (message->receive) end(*std::move(message->receive));
    unexpected_.remove_if([&](const Message& one) { return &one == message; });
  }
}

void PointToPoint::Finish(Pending pending, absl::StatusOr<int> result) {
  finished_.emplace_back(std::move(pending.done), std::move(result));
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
    auto end = [&](Pending* pending)
                   ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { Finish(std::move(*pending), failed_); };
    ForEachPending(end);
    for (Peer& peer : peers_) {
      peer.direct.reset();
      peer.message = nullptr;
    }
    posted_.clear();
    receiving_.clear();
    sending_.clear();
    unexpected_.clear();
    changed_.SignalAll();
  }
  TurnEnds();
}

template <typename Body>
void PointToPoint::ForEachPending(Body body) {
  for (Pending& one : posted_) body(&one);
  for (auto& [id, one] : receiving_) body(&one);
  for (auto& [id, one] : sending_) body(&one);
  for (Message& one : unexpected_) {
    if (one.receive) body(&*one.receive);
  }
  for (Peer& one : peers_) {
    if (one.direct) body(&*one.direct);
  }
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
    ForEachPending([&](Pending* one) {
      if (one->deadline >= deadline) return;
      deadline = one->deadline;
      here = absl::StrCat(Describe(one->operation), " on group '", group_, "'");
      const int other = one->operation.root == kAnySource ? one->peer : one->operation.root;
      whom = other == kAnySource
                 ? "no rank has sent"
                 : absl::StrCat("rank ", other,
                                one->operation.kind == OpKind::kSend ? " has not received" : " has not sent");
    });
    int lost = kAnySource;
    for (int p = 0; p < world_size_; ++p) {
      if (peers_[p].lost && !peers_[p].left) lost = p;
    }
    bool pending = false;
    ForEachPending([&](Pending* one) {
      if (!pending && lost != kAnySource)
        here = absl::StrCat(Describe(one->operation), " on group '", group_, "'");
      pending = true;
    });
    if (lost != kAnySource && pending) {
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
