// SPDX-License-Identifier: Apache-2.0
#include "collectives/backends/tcp/exchange.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/timed_wait.h"

namespace tandem::collectives::tcp {

Exchange::Exchange(int rank, int world_size) : rank_(rank), world_size_(world_size), peers_(world_size) {}

char* Exchange::Landing(const Lane& lane, int phase, size_t at) {
  if (phase == 1) return lane.receive2 + at;
  return lane.receive + (lane.ring > 0 ? at % lane.ring : at);
}

char* Exchange::EarlyBuffer(Peer* peer) {
  // Left uninitialised: pages that no head touches are never mapped.
  if (peer->early_bytes == nullptr) peer->early_bytes.reset(new char[kChunkBytes]);
  return peer->early_bytes.get();
}

void Exchange::Queue(int peer, Frame frame, const char* data) {
  const int phase = frame.type == Frame::Type::kHead ? 0 : frame.phase;
  if (!links_->Send(peer, frame, data)) return;
  absl::MutexLock lock(&mutex_);
  peers_[peer].sent[phase] += frame.bytes;
}

bool Exchange::Begin(const Fingerprint& fingerprint, double factor, absl::Span<const Lane> lanes,
                     absl::Time deadline) {
  deadline_ = deadline;
  Frame head;
  head.type = Frame::Type::kHead;
  head.fingerprint = fingerprint;
  head.factor = factor;
  {
    absl::MutexLock lock(&mutex_);
    running_ = true;
    head.id = ++round_;
    fingerprint_ = fingerprint;
    peers_[rank_].factor = factor;
    for (int p = 0; p < world_size_; ++p) {
      if (p == rank_) continue;
      Peer& peer = peers_[p];
      peer.lane = lanes[p];
      peer.agreed = false;
      peer.received = {};
      peer.queued = {std::min(lanes[p].send_bytes, kChunkBytes), 0};
      peer.sent = {};
      if (peer.early != Peer::Early::kArrived) continue;
      peer.early = Peer::Early::kNone;
      if (Accept(p, peer.early_frame) && peer.early_frame.bytes > 0) {
        std::memcpy(Landing(peer.lane, 0, 0), peer.early_bytes.get(), peer.early_frame.bytes);
        peer.received[0] = peer.early_frame.bytes;
      }
    }
  }
  // Each rank starts with its successor, so that not every rank writes to rank 0 first.
  for (int step = 1; step < world_size_; ++step) {
    const int p = (rank_ + step) % world_size_;
    head.value = lanes[p].send_bytes;
    head.bytes = std::min(lanes[p].send_bytes, kChunkBytes);
    Queue(p, head, lanes[p].send);
  }
  absl::MutexLock lock(&mutex_);
  return !Failed();
}

bool Exchange::Accept(int p, const Frame& frame) {
  Peer& peer = peers_[p];
  if (failure_.kind != Failure::Kind::kNone) return false;
  if (!Agree(frame.fingerprint, fingerprint_)) {
    failure_.kind = peer.left ? Failure::Kind::kLeft : Failure::Kind::kDisagreement;
    failure_.ranks = {p};
    failure_.theirs = frame.fingerprint;
    return false;
  }
  if (frame.value != peer.lane.receive_bytes || frame.bytes != std::min<size_t>(frame.value, kChunkBytes)) {
    failure_.kind = Failure::Kind::kSizes;
    failure_.ranks = {p};
    failure_.bytes_sent = frame.value;
    failure_.bytes_expected = peer.lane.receive_bytes;
    return false;
  }
  peer.agreed = true;
  peer.factor = frame.factor;
  return true;
}

absl::StatusOr<char*> Exchange::FrameBegins(int p, const Frame& frame) {
  absl::MutexLock lock(&mutex_);
  Peer& peer = peers_[p];
  if (frame.type == Frame::Type::kHead) {
    if (frame.bytes > kChunkBytes || peer.early != Peer::Early::kNone) {
      return absl::InvalidArgumentError("it sent more than a head may hold");
    }
    if (frame.fingerprint.kind == OpKind::kLeave) peer.left = true;
    if (running_ && frame.id == round_ && !peer.agreed) {
      return Accept(p, frame) ? Landing(peer.lane, 0, 0) : EarlyBuffer(&peer);
    }
    if (frame.id != round_ + 1) return absl::InvalidArgumentError("it sent a head out of turn");
    peer.early = Peer::Early::kArriving;
    peer.early_frame = frame;
    return EarlyBuffer(&peer);
  }
  const int phase = frame.phase;
  // The sender does not know yet that this operation has failed here, and must be able to find out why: if
  // the connection closed now, it would do so before the reason is stored.
  if (failure_.kind != Failure::Kind::kNone && phase <= 1 && frame.bytes <= kChunkBytes) {
    return EarlyBuffer(&peer);
  }
  if (!running_ || frame.id != round_ || !peer.agreed || phase > 1) {
    return absl::InvalidArgumentError("it sent data that nobody awaits");
  }
  const size_t at = peer.received[phase];
  const size_t total = phase == 0 ? peer.lane.receive_bytes : peer.lane.receive2_bytes;
  const size_t room = std::min(total - at, kChunkBytes - at % kChunkBytes);
  if (frame.bytes > room) return absl::InvalidArgumentError("it sent more data than it promised");
  return Landing(peer.lane, phase, at);
}

void Exchange::FrameEnds(int p, const Frame& frame) {
  absl::MutexLock lock(&mutex_);
  Peer& peer = peers_[p];
  if (frame.type != Frame::Type::kHead) {
    peer.received[frame.phase] += frame.bytes;
    return;
  }
  if (peer.early == Peer::Early::kArriving) {
    if (!running_ || frame.id != round_) {
      peer.early = Peer::Early::kArrived;
      return;
    }
    // The operation was called while its head was arriving.
    peer.early = Peer::Early::kNone;
    if (Accept(p, frame) && frame.bytes > 0) {
      std::memcpy(Landing(peer.lane, 0, 0), peer.early_bytes.get(), frame.bytes);
    }
  }
  if (peer.agreed) peer.received[0] = frame.bytes;
}

void Exchange::FrameSent(int p, const Frame& frame) {
  absl::MutexLock lock(&mutex_);
  peers_[p].sent[frame.type == Frame::Type::kHead ? 0 : frame.phase] += frame.bytes;
}

void Exchange::LinkLost(int p, const std::string& detail) {
  absl::MutexLock lock(&mutex_);
  peers_[p].lost = true;
  peers_[p].detail = detail;
}

bool Exchange::HasLeft(int p) const {
  absl::MutexLock lock(&mutex_);
  return peers_[p].left;
}

void Exchange::Stop() {
  absl::MutexLock lock(&mutex_);
  stopped_ = true;
}

size_t Exchange::Sendable(const Peer& peer) const {
  if (!peer.agreed) return 0;
  size_t limit = peer.lane.send_bytes;
  if (peer.lane.ring > 0) {
    // Whole chunks only, so that none crosses the ring's end.
    const size_t returned = peer.received[1] / kChunkBytes * kChunkBytes;
    limit = std::min(limit, returned + peer.lane.ring);
  }
  return limit > peer.queued[0] ? limit - peer.queued[0] : 0;
}

bool Exchange::Needs(const Peer& peer) const {
  return !peer.agreed || peer.received[0] < peer.lane.receive_bytes ||
         peer.received[1] < peer.lane.receive2_bytes || peer.sent[0] < peer.lane.send_bytes ||
         peer.sent[1] < peer.lane.send2_bytes;
}

bool Exchange::Failed() {
  if (failure_.kind != Failure::Kind::kNone) return true;
  if (stopped_) {
    failure_.kind = Failure::Kind::kStopped;
    return true;
  }
  for (int p = 0; p < world_size_; ++p) {
    // A rank may leave when it is done, even if this one is not.
    if (p == rank_ || !peers_[p].lost || !Needs(peers_[p])) continue;
    failure_.kind = peers_[p].left ? Failure::Kind::kLeft : Failure::Kind::kLost;
    failure_.ranks.push_back(p);
    failure_.detail = peers_[p].detail;
    if (peers_[p].left) failure_.ranks = {p};
    if (peers_[p].left) break;
  }
  return failure_.kind != Failure::Kind::kNone;
}

template <typename Done>
bool Exchange::Await(Done done) {
  auto wake = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (Failed() || done()) return true;
    return std::any_of(peers_.begin(), peers_.end(),
                       [this](const Peer& peer)
                           ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return Sendable(peer) > 0; });
  };
  const absl::Condition condition(&wake);
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      const bool in_time = AwaitUntil(&mutex_, condition, deadline_);
      if (Failed()) return false;
      if (done()) return true;
      if (!in_time) {
        failure_.kind = Failure::Kind::kTimeout;
        for (int p = 0; p < world_size_; ++p) {
          if (p != rank_ && !peers_[p].agreed) failure_.ranks.push_back(p);
        }
        failure_.arrived = failure_.ranks.empty();
        for (int p = 0; failure_.arrived && p < world_size_; ++p) {
          if (p != rank_ && Needs(peers_[p])) failure_.ranks.push_back(p);
        }
        return false;
      }
    }
    for (int step = 1; step < world_size_; ++step) {
      const int p = (rank_ + step) % world_size_;
      while (true) {
        Frame frame;
        frame.type = Frame::Type::kData;
        const char* data = nullptr;
        {
          absl::MutexLock lock(&mutex_);
          Peer& peer = peers_[p];
          frame.id = round_;
          frame.bytes = std::min(Sendable(peer), kChunkBytes);
          if (frame.bytes == 0) break;
          data = peer.lane.send + peer.queued[0];
          peer.queued[0] += frame.bytes;
        }
        Queue(p, frame, data);
      }
    }
  }
}

bool Exchange::AwaitHeads() {
  return Await([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (int p = 0; p < world_size_; ++p) {
      if (p != rank_ && !peers_[p].agreed) return false;
    }
    return true;
  });
}

bool Exchange::AwaitReceived(int phase, size_t bytes) {
  return Await([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (int p = 0; p < world_size_; ++p) {
      const Lane& lane = peers_[p].lane;
      const size_t total = phase == 0 ? lane.receive_bytes : lane.receive2_bytes;
      if (p != rank_ && peers_[p].received[phase] < std::min(bytes, total)) return false;
    }
    return true;
  });
}

bool Exchange::AwaitReceivedFrom(int p, int phase, size_t bytes) {
  return Await([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return peers_[p].received[phase] >= bytes; });
}

bool Exchange::AwaitSent(int p, size_t bytes) {
  return Await([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return peers_[p].sent[0] >= bytes; });
}

void Exchange::SendMore(int p, const char* data, size_t bytes) {
  if (bytes == 0) return;
  Frame frame;
  frame.type = Frame::Type::kData;
  frame.phase = 1;
  frame.bytes = bytes;
  {
    absl::MutexLock lock(&mutex_);
    frame.id = round_;
    peers_[p].queued[1] += bytes;
  }
  Queue(p, frame, data);
}

bool Exchange::Finish() {
  const bool done = Await([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (int p = 0; p < world_size_; ++p) {
      if (p != rank_ && Needs(peers_[p])) return false;
    }
    return true;
  });
  absl::MutexLock lock(&mutex_);
  running_ = false;
  return done;
}

std::vector<double> Exchange::factors() const {
  absl::MutexLock lock(&mutex_);
  std::vector<double> all;
  for (const Peer& peer : peers_) all.push_back(peer.factor);
  return all;
}

Exchange::Failure Exchange::failure() const {
  absl::MutexLock lock(&mutex_);
  return failure_;
}

}  // namespace tandem::collectives::tcp
