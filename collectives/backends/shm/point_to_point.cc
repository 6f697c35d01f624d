// SPDX-License-Identifier: Apache-2.0
#include "collectives/backends/shm/point_to_point.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "base/ticks.h"

namespace tandem::collectives::shm {
namespace {

constexpr uint32_t kMagic = 0x7032706e;
constexpr size_t kAlign = 32;         // of messages in a ring
constexpr size_t kChunk = 64 * 1024;  // bytes per publication, so that the other side copies concurrently
constexpr uint64_t kMostBytes = uint64_t{1} << 48;
constexpr absl::Duration kLeaveTimeout = absl::Seconds(2);

uint64_t Padded(uint64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

// Copies between a buffer and [position, position + bytes) of a ring of `size` bytes, a power of two.
void FromRing(char* to, const char* ring, size_t size, uint64_t position, size_t bytes) {
  if (bytes == 0) return;
  const size_t at = position & (size - 1), first = std::min(bytes, size - at);
  std::memcpy(to, ring + at, first);
  std::memcpy(to + first, ring, bytes - first);
}
void ToRing(char* ring, size_t size, uint64_t position, const char* from, size_t bytes) {
  if (bytes == 0) return;
  const size_t at = position & (size - 1), first = std::min(bytes, size - at);
  std::memcpy(ring + at, from, first);
  std::memcpy(ring, from + first, bytes - first);
}

}  // namespace

PointToPoint::PointToPoint(std::shared_ptr<Segment> segment, SharedFailureState* failures, int rank,
                           std::string group)
    : segment_(std::move(segment)),
      failures_(failures),
      rank_(rank),
      world_size_(segment_->geometry().world_size),
      group_(std::move(group)),
      credit_(CreditBytes(world_size_)),
      spin_policy_(SpinPolicyFor(world_size_, UsableProcessors())),
      wakeup_(segment_->area(rank).mailbox_wakeup),
      peers_(world_size_) {}

size_t PointToPoint::Cost(size_t bytes) { return Padded(bytes) + sizeof(Header); }

PointToPoint::~PointToPoint() {
  Waiter waiter(spin_policy_, failures_->word(), kLeaveTimeout);
  Finished finished;
  while (true) {
    const uint64_t before = Activity();
    bool sending = false;
    {
      absl::MutexLock lock(&mutex_);
      Progress(&finished);
      for (const Peer& peer : peers_) {
        sending |= !peer.announced.empty();
        for (const Frame& frame : peer.outgoing) sending |= frame.header.type != Type::kTaken;
      }
    }
    if (!sending) break;
    const auto ready = [&] { return Activity() != before; };
    if (waiter.Await(wakeup_, ready, [] { return false; }) != Outcome::kReady) break;
  }
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    FinishAll(absl::AbortedError(absl::StrCat("this rank has left group '", group_, "'")), &finished);
  }
  wake_count_.fetch_add(1, std::memory_order_seq_cst);
  WakeAlways(wakeup_);
  if (thread_.joinable()) thread_.join();
  Notify(finished);
}

void PointToPoint::Start(const Operation& operation, Backend::Done done) {
  absl::Status status = CheckNew(operation);
  if (!status.ok()) return done(std::move(status));
  auto* const transfer = new Transfer;  // until Notify
  transfer->operation = operation;
  transfer->done = std::move(done);
  transfer->deadline_ns = DeadlineNs(operation.timeout);
  Finished finished;
  {
    absl::MutexLock lock(&mutex_);
    started_.insert(transfer);
    Begin(transfer, &finished);
    Progress(&finished);
    EnsureThread(&finished);
  }
  wake_count_.fetch_add(1, std::memory_order_release);
  Notify(finished);
}

void PointToPoint::EnsureThread(Finished* finished) {
  if (!ThreadHasWork() || stopping_ || thread_.joinable()) return;
  try {
    thread_ = std::thread([this] { RunThread(); });
  } catch (const std::system_error& error) {
    FinishAll(failures_->Report(absl::ResourceExhaustedError(
                  absl::StrCat("the thread for asynchronous messages could not be started: ", error.what()))),
              finished);
  }
}

absl::StatusOr<int> PointToPoint::Run(const Operation& operation) {
  TANDEM_RETURN_IF_ERROR(CheckNew(operation));
  Transfer transfer;
  transfer.operation = operation;
  Waiter waiter(spin_policy_, failures_->word(), operation.timeout);
  Finished finished;
  bool begun = false;
  while (true) {
    const uint64_t before = Activity();
    {
      absl::MutexLock lock(&mutex_);
      if (!std::exchange(begun, true)) Begin(&transfer, &finished);
      Progress(&finished);
      // A reply for which the ring had no space is left to the thread, because this one may return.
      if (num_replies_ > 0) EnsureThread(&finished);
    }
    Notify(std::exchange(finished, {}));  // also wakes another thread, if its transfer is done
    const auto done = [&] { return transfer.finished.load(std::memory_order_acquire); };
    if (done()) break;
    const Outcome outcome = waiter.Await(
        wakeup_, [&] { return done() || Activity() != before; }, [] { return false; });
    if (outcome == Outcome::kTimedOut) (void)failures_->Report(TimedOut(operation));
  }
  return std::move(transfer.result);
}

void PointToPoint::RunThread() {
  // This thread competes with threads that compute, so it does not spin for long.
  const SpinPolicy spin_policy(spin_policy_.spins, std::min(spin_policy_.yields, 5),
                               spin_policy_.spins_between);
  while (true) {
    const uint64_t before = Activity();
    const uint32_t wake_count = wake_count_.load(std::memory_order_acquire);
    Finished finished;
    int64_t next_ns = std::numeric_limits<int64_t>::max();
    bool idle;
    {
      absl::MutexLock lock(&mutex_);
      Progress(&finished);
      idle = !ThreadHasWork();
      if (stopping_) idle = false;
      const int64_t now = SteadyNanoseconds();
      for (const Transfer* transfer : started_) {
        next_ns = std::min(next_ns, transfer->deadline_ns);
        if (transfer->deadline_ns > now) continue;
        FinishAll(failures_->Report(TimedOut(transfer->operation)), &finished);
        break;  // no transfers are left
      }
    }
    Notify(finished);
    {
      absl::MutexLock lock(&mutex_);
      if (stopping_ || !failures_->status().ok()) return;  // no new transfers begin
      if (idle) {
        // Not registered on the wakeup word: the peers need not wake this thread for transfers on which other
        // threads wait.
        mutex_.Await(absl::Condition(
            +[](PointToPoint* self)
                 ABSL_NO_THREAD_SAFETY_ANALYSIS { return self->stopping_ || self->ThreadHasWork(); },
            this));
        continue;
      }
    }
    const int64_t now = SteadyNanoseconds();
    Waiter waiter(spin_policy, failures_->word(), absl::Nanoseconds(std::max<int64_t>(0, next_ns - now)));
    waiter.Await(
        wakeup_,
        [&] { return Activity() != before || wake_count_.load(std::memory_order_acquire) != wake_count; },
        [] { return false; });
  }
}

absl::Status PointToPoint::CheckNew(const Operation& op) const {
  TANDEM_RETURN_IF_ERROR(failures_->status());
  const bool any = op.kind == OpKind::kRecv && op.root == kAnySource;
  if (any || (op.root >= 0 && op.root < world_size_)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(Describe(op), ": group '", group_, "' has ", world_size_, " ranks"));
}

void PointToPoint::Begin(Transfer* transfer, Finished* finished) {
  const Operation& op = transfer->operation;
  const bool send = op.kind == OpKind::kSend;
  transfer->bytes = (send ? op.in.count : op.out.count) * SizeOf(op.dtype);
  if (!send) {
    BeginRecv(transfer, finished);
  } else if (op.root == rank_) {
    SendToSelf(transfer, finished);
  } else {
    Peer& peer = peers_[op.root];
    Header header = {kMagic, op.tag, transfer->bytes, 0, static_cast<uint8_t>(op.dtype), Type::kMessage, {}};
    const size_t cost = Cost(transfer->bytes);
    if (transfer->bytes <= kMostBytes && cost <= credit_ - peer.unanswered) {
      peer.unanswered += cost;
      peer.outgoing.push_back({header, transfer});
    } else {
      header.type = Type::kRequest;
      header.id = next_id_++;
      peer.announced.emplace(header.id, transfer);
      peer.outgoing.push_back({header, nullptr});
      ++num_replies_;
    }
  }
}

void PointToPoint::BeginRecv(Transfer* recv, Finished* finished) {
  const Operation& op = recv->operation;
  for (auto it = unexpected_.begin(); it != unexpected_.end(); ++it) {
    if (it->claimed_by != nullptr || it->header.tag != op.tag) continue;
    if (op.root != kAnySource && op.root != it->source) continue;
    if (it->header.type == Type::kRequest) {
      Answer(it->source, it->header, recv, finished);
      unexpected_.erase(it);
      return;
    }
    const absl::Status fits = Fits(*recv, it->source, it->header);
    if (fits.ok() && !it->complete) {
      it->claimed_by = recv;
    } else if (fits.ok()) {
      Deliver(&*it, recv, finished);
    } else {
      Incoming& incoming = peers_[it->source].incoming;
      if (incoming.unexpected == &*it) incoming.unexpected = nullptr;  // the rest is dropped
      Taken(it->source, it->header);
      unexpected_.erase(it);
      Finish(recv, fits, finished);
    }
    return;
  }
  recvs_.push_back(recv);
}

void PointToPoint::SendToSelf(Transfer* send, Finished* finished) {
  const Operation& op = send->operation;
  const Header header = {kMagic, op.tag, send->bytes, 0, static_cast<uint8_t>(op.dtype), Type::kMessage, {}};
  if (Transfer* const recv = TakeRecv(rank_, op.tag); recv != nullptr) {
    absl::Status fits = Fits(*recv, rank_, header);
    if (fits.ok() && send->bytes > 0) std::memcpy(recv->operation.out.data, op.in.data, send->bytes);
    Finish(recv, fits.ok() ? absl::StatusOr<int>(rank_) : fits, finished);
  } else {
    std::unique_ptr<char[]> data(new char[send->bytes]);
    if (send->bytes > 0) std::memcpy(data.get(), op.in.data, send->bytes);
    unexpected_.push_back({rank_, header, std::move(data), /*complete=*/true, nullptr});
  }
  Finish(send, rank_, finished);
}

void PointToPoint::Progress(Finished* finished) {
  const uint64_t left = RanksThatLeft();  // read first: everything that they sent is then visible
  if (failures_->word().load(std::memory_order_acquire) != 0) return FinishAll(failures_->status(), finished);
  for (int s = 0; s < world_size_; ++s) {
    if (s == rank_) continue;
    ProgressReceives(s, finished);
    if (!peers_[s].outgoing.empty()) ProgressSends(s, finished);
  }
  if (left != 0) FailIfAwaited(left);
  if (failures_->word().load(std::memory_order_acquire) != 0) FinishAll(failures_->status(), finished);
}

void PointToPoint::ProgressSends(int to, Finished* finished) {
  RingControl& control = segment_->ring_control(rank_, to);
  char* const ring = segment_->ring(rank_, to);
  const size_t size = segment_->geometry().ring_bytes;
  uint64_t written = control.written.load(std::memory_order_relaxed);
  uint64_t& read = peers_[to].space_seen;
  std::deque<Frame>& queue = peers_[to].outgoing;
  const auto publish = [&] {
    Publish(control.written, written, segment_->area(to).mailbox_wakeup, spin_policy_.sleeps_often());
  };
  while (!queue.empty()) {
    Frame& frame = queue.front();
    if (size - (written - read) < 2 * kAlign) {
      const uint64_t now = control.read.load(std::memory_order_acquire);
      if (now > written || now < read) return (void)failures_->Report(Damaged(to));
      read = now;
      if (size - (written - read) < 2 * kAlign) return;
    }
    if (!std::exchange(frame.begun, true)) {
      ToRing(ring, size, written, reinterpret_cast<const char*>(&frame.header), sizeof(Header));
      written += sizeof(Header);
    }
    Transfer* const send = frame.send;
    if (send == nullptr) {
      publish();
      queue.pop_front();
      --num_replies_;
      continue;
    }
    const size_t space = size - (written - read);  // a multiple of kAlign, like everything written
    const size_t bytes = std::min({send->bytes - send->moved, space, kChunk});
    ToRing(ring, size, written, static_cast<const char*>(send->operation.in.data) + send->moved, bytes);
    send->moved += bytes;
    written += Padded(bytes);
    publish();
    if (send->moved < send->bytes) continue;
    queue.pop_front();
    Finish(send, rank_, finished);
  }
}

void PointToPoint::ProgressReceives(int from, Finished* finished) {
  RingControl& control = segment_->ring_control(from, rank_);
  const char* const ring = segment_->ring(from, rank_);
  const size_t size = segment_->geometry().ring_bytes;
  uint64_t read = control.read.load(std::memory_order_relaxed);
  Incoming& incoming = peers_[from].incoming;
  const auto publish = [&] {
    Publish(control.read, read, segment_->area(from).mailbox_wakeup, spin_policy_.sleeps_often());
  };
  while (true) {
    const uint64_t available = control.written.load(std::memory_order_acquire) - read;
    if (available > size) return (void)failures_->Report(Damaged(from));
    if (!incoming.begun) {
      if (available < sizeof(Header)) return;
      FromRing(reinterpret_cast<char*>(&incoming.header), ring, size, read, sizeof(Header));
      const Header& header = incoming.header;
      if (header.magic != kMagic || header.bytes > kMostBytes || header.dtype >= kNumDTypes ||
          !HeaderArrived(from, incoming, finished)) {
        return (void)failures_->Report(Damaged(from));
      }
      read += sizeof(Header);
      if (header.type != Type::kMessage && header.type != Type::kPayload) {
        incoming = Incoming();
        publish();
        continue;
      }
      incoming.begun = true;
      if (header.bytes > 0 && available == sizeof(Header)) {
        publish();
        continue;
      }
    } else if (available == 0 && incoming.moved < incoming.header.bytes) {
      return;
    }
    // The sender pads only the last chunk, and publishes a chunk together with its padding.
    const size_t there = control.written.load(std::memory_order_acquire) - read;
    if (there > size) return (void)failures_->Report(Damaged(from));
    const size_t bytes = std::min({incoming.header.bytes - incoming.moved, there, kChunk});
    char* const to = incoming.recv != nullptr         ? static_cast<char*>(incoming.recv->operation.out.data)
                     : incoming.unexpected != nullptr ? incoming.unexpected->data.get()
                                                      : nullptr;
    if (to != nullptr) FromRing(to + incoming.moved, ring, size, read, bytes);
    incoming.moved += bytes;
    read += Padded(bytes);
    publish();
    if (incoming.moved < incoming.header.bytes) continue;
    const Incoming complete = std::exchange(incoming, Incoming());
    if (complete.recv != nullptr) {
      Finish(complete.recv, from, finished);
    } else if (complete.unexpected != nullptr) {
      complete.unexpected->complete = true;
      Transfer* const recv = complete.unexpected->claimed_by;
      if (recv != nullptr) Deliver(complete.unexpected, recv, finished);
    }
  }
}

bool PointToPoint::HeaderArrived(int from, Incoming& incoming, Finished* finished) {
  const Header& header = incoming.header;
  Peer& peer = peers_[from];
  switch (header.type) {
    case Type::kMessage: {
      const size_t cost = Cost(header.bytes);
      if (cost > credit_ - peer.held) return false;
      peer.held += cost;
      Transfer* const recv = TakeRecv(from, header.tag);
      if (recv == nullptr) {
        unexpected_.push_back(
            {from, header, std::unique_ptr<char[]>(new char[header.bytes]), false, nullptr});
        incoming.unexpected = &unexpected_.back();
        return true;
      }
      Taken(from, header);
      if (const absl::Status fits = Fits(*recv, from, header); !fits.ok()) {
        Finish(recv, fits, finished);
      } else {
        incoming.recv = recv;
      }
      return true;
    }
    case Type::kRequest: {
      Transfer* const recv = TakeRecv(from, header.tag);
      if (recv != nullptr) {
        Answer(from, header, recv, finished);
      } else {
        unexpected_.push_back({from, header, nullptr, false, nullptr});
      }
      return true;
    }
    case Type::kGrant:
    case Type::kRefusal: {
      const auto found = peer.announced.find(header.id);
      if (found == peer.announced.end()) return false;
      Transfer* const send = found->second;
      peer.announced.erase(found);
      if (header.type == Type::kRefusal) {
        Finish(send, rank_, finished);
        return true;
      }
      const Operation& op = send->operation;
      peer.outgoing.push_back(
          {{kMagic, op.tag, send->bytes, header.id, static_cast<uint8_t>(op.dtype), Type::kPayload, {}},
           send});
      return true;
    }
    case Type::kPayload: {
      const auto found = peer.granted.find(header.id);
      if (found == peer.granted.end() || found->second->bytes != header.bytes) return false;
      incoming.recv = found->second;
      peer.granted.erase(found);
      return true;
    }
    case Type::kTaken:
      if (header.bytes > peer.unanswered) return false;
      peer.unanswered -= header.bytes;
      return true;
  }
  return false;
}

void PointToPoint::Reply(int to, Type type, uint64_t id, uint64_t bytes) {
  peers_[to].outgoing.push_back({{kMagic, 0, bytes, id, 0, type, {}}, nullptr});
  ++num_replies_;
}

void PointToPoint::Answer(int from, const Header& message, Transfer* recv, Finished* finished) {
  const absl::Status fits = Fits(*recv, from, message);
  Reply(from, fits.ok() ? Type::kGrant : Type::kRefusal, message.id);
  if (!fits.ok()) return Finish(recv, fits, finished);
  peers_[from].granted.emplace(message.id, recv);
}

void PointToPoint::Taken(int from, const Header& message) {
  if (from == rank_) return;
  Peer& peer = peers_[from];
  const size_t cost = Cost(message.bytes);
  peer.held -= cost;
  peer.taken += cost;
  // A reply for each message would cost as much as a small message.
  if (peer.taken >= credit_ / 8) Reply(from, Type::kTaken, 0, std::exchange(peer.taken, 0));
}

PointToPoint::Transfer* PointToPoint::TakeRecv(int from, uint32_t tag) {
  for (auto it = recvs_.begin(); it != recvs_.end(); ++it) {
    Transfer* const recv = *it;
    const Operation& op = recv->operation;
    if (op.tag != tag || (op.root != kAnySource && op.root != from)) continue;
    recvs_.erase(it);
    return recv;
  }
  return nullptr;
}

void PointToPoint::Deliver(Unexpected* message, Transfer* recv, Finished* finished) {
  if (recv->bytes > 0) std::memcpy(recv->operation.out.data, message->data.get(), recv->bytes);
  Finish(recv, message->source, finished);
  Taken(message->source, message->header);
  unexpected_.remove_if([message](const Unexpected& other) { return &other == message; });
}

absl::Status PointToPoint::Fits(const Transfer& recv, int from, const Header& header) const {
  const auto dtype = static_cast<DType>(header.dtype);
  if (recv.operation.dtype == dtype && recv.bytes == header.bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(Describe(recv.operation), " of group '", group_, "': rank ", from, " sent ", Name(dtype),
                   " x ", header.bytes / SizeOf(dtype), "; both sides must give the same dtype and size"));
}

void PointToPoint::FailIfAwaited(uint64_t left) {
  const auto fail = [&](const Operation& op, int rank) {
    (void)failures_->Report(
        absl::UnavailableError(absl::StrCat("rank ", rank, " has left the group, and will not take part in ",
                                            Describe(op), " of group '", group_, "'")));
  };
  const auto has_left = [&](int rank) { return (left >> rank & 1) != 0; };
  for (int s = 0; s < world_size_; ++s) {
    if (!has_left(s)) continue;
    Peer& peer = peers_[s];
    for (const Frame& frame : peer.outgoing) {
      if (frame.send != nullptr) return fail(frame.send->operation, s);
    }
    if (!peer.announced.empty()) return fail(peer.announced.begin()->second->operation, s);
    if (!peer.granted.empty()) return fail(peer.granted.begin()->second->operation, s);
    num_replies_ -= peer.outgoing.size();  // it needs no replies any more
    peer.outgoing.clear();
    const Incoming& incoming = peer.incoming;
    if (incoming.recv != nullptr) return fail(incoming.recv->operation, s);
    if (incoming.unexpected != nullptr && incoming.unexpected->claimed_by != nullptr) {
      return fail(incoming.unexpected->claimed_by->operation, s);
    }
  }
  const uint64_t others =
      (world_size_ == 64 ? ~uint64_t{0} : (uint64_t{1} << world_size_) - 1) & ~(uint64_t{1} << rank_);
  for (const Transfer* recv : recvs_) {
    const int source = recv->operation.root;
    if (source == kAnySource ? left == others : has_left(source)) {
      return fail(recv->operation, source == kAnySource ? (rank_ == 0 ? 1 : 0) : source);
    }
  }
}

absl::Status PointToPoint::Damaged(int rank) const {
  return absl::DataLossError(absl::StrCat("the shared memory of group '", group_, "' is damaged: what rank ",
                                          rank, " wrote there for rank ", rank_, " makes no sense"));
}

absl::Status PointToPoint::TimedOut(const Operation& op) const {
  const std::string who = op.root == kAnySource      ? "no rank sent it"
                          : op.kind == OpKind::kSend ? absl::StrCat("rank ", op.root, " did not receive it")
                                                     : absl::StrCat("rank ", op.root, " did not send it");
  return absl::DeadlineExceededError(absl::StrCat(Describe(op), " of rank ", rank_, " in group '", group_,
                                                  "' timed out after ", absl::FormatDuration(op.timeout),
                                                  ": ", who));
}

void PointToPoint::Finish(Transfer* transfer, absl::StatusOr<int> result, Finished* finished) {
  transfer->result = std::move(result);
  if (transfer->done) {
    started_.erase(transfer);
    finished->push_back(transfer);
  } else {
    transfer->finished.store(true, std::memory_order_release);
  }
}

void PointToPoint::FinishAll(const absl::Status& status, Finished* finished) {
  for (Peer& peer : peers_) {
    for (const Frame& frame : std::exchange(peer.outgoing, {})) {
      if (frame.send != nullptr) Finish(frame.send, status, finished);
    }
    for (const auto& [id, send] : std::exchange(peer.announced, {})) Finish(send, status, finished);
    for (const auto& [id, recv] : std::exchange(peer.granted, {})) Finish(recv, status, finished);
    if (peer.incoming.recv != nullptr) {
      Finish(std::exchange(peer.incoming.recv, nullptr), status, finished);
    }
  }
  num_replies_ = 0;
  for (Transfer* recv : std::exchange(recvs_, {})) Finish(recv, status, finished);
  for (Unexpected& message : unexpected_) {
    if (message.claimed_by != nullptr) Finish(std::exchange(message.claimed_by, nullptr), status, finished);
  }
}

void PointToPoint::Notify(const Finished& finished) {
  for (Transfer* const raw : finished) {
    const std::unique_ptr<Transfer> transfer(raw);
    transfer->done(std::move(transfer->result));
  }
  Wake(wakeup_);
}

uint64_t PointToPoint::RanksThatLeft() const {
  uint64_t left = 0;
  for (int s = 0; s < world_size_; ++s) {
    if (s != rank_ && segment_->area(s).state.load(std::memory_order_acquire) == kLeft)
      left |= uint64_t{1} << s;
  }
  return left;
}

uint64_t PointToPoint::Activity() const {
  uint64_t sum = 0;
  for (int s = 0; s < world_size_; ++s) {
    if (s == rank_) continue;
    sum += segment_->ring_control(s, rank_).written.load(std::memory_order_acquire) +
           segment_->ring_control(rank_, s).read.load(std::memory_order_acquire) +
           segment_->area(s).state.load(std::memory_order_acquire);
  }
  return sum;
}

}  // namespace tandem::collectives::shm
