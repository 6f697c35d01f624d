// SPDX-License-Identifier: Apache-2.0
#include "collectives/backends/shm/point_to_point.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/copy_bytes.h"
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
  CopyBytes(to, ring + at, first);
  CopyBytes(to + first, ring, bytes - first);
}
void ToRing(char* ring, size_t size, uint64_t position, const char* from, size_t bytes) {
  if (bytes == 0) return;
  const size_t at = position & (size - 1), first = std::min(bytes, size - at);
  CopyBytes(ring + at, from, first);
  CopyBytes(ring, from + first, bytes - first);
}

MessageMatcher::Limits LimitsFor(int world_size, size_t overhead) {
  const size_t credit = CreditBytes(world_size);
  return {.credit = credit,
          .largest_eager = credit,
          .overhead = overhead,
          .credit_portion = credit / 8,
          .spare = kMostUnexpectedBytes};
}

}  // namespace

PointToPoint::PointToPoint(std::shared_ptr<Segment> segment, SharedFailureState* failures, int rank,
                           std::string group)
    : segment_(std::move(segment)),
      failures_(failures),
      rank_(rank),
      world_size_(segment_->geometry().world_size),
      group_(std::move(group)),
      spin_policy_(SpinPolicyFor(world_size_, UsableProcessors())),
      wakeup_(segment_->area(rank).mailbox_wakeup),
      peers_(world_size_),
      matcher_(group_, rank, world_size_, LimitsFor(world_size_, sizeof(Header)), this) {}

PointToPoint::~PointToPoint() {
  Waiter waiter(spin_policy_, failures_->word(), kLeaveTimeout);
  while (true) {
    const uint64_t before = Activity();
    bool sending = false;
    {
      absl::MutexLock lock(&mutex_);
      Progress();
      sending = matcher_.HasAnnounced();
      for (const Peer& peer : peers_) {
        for (const Frame& frame : peer.outgoing) sending |= frame.header.type != Type::kTaken;
      }
    }
    if (!sending) break;
    const auto ready = [&] { return Activity() != before; };
    if (waiter.Await(wakeup_, ready, [] { return false; }) != Outcome::kReady) break;
  }
  Finished finished;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    EndAll(absl::AbortedError(absl::StrCat("this rank has left group '", group_, "'")));
    finished.swap(finished_);
  }
  wake_count_.fetch_add(1, std::memory_order_seq_cst);
  WakeAlways(wakeup_);
  if (thread_.joinable()) thread_.join();
  Notify(finished);
}

void PointToPoint::Start(const Operation& operation, Backend::Done done) {
  absl::Status status = CheckNew(operation);
  if (!status.ok()) return done(std::move(status));
  auto* const transfer = new Transfer(operation);  // until Notify
  transfer->done = std::move(done);
  transfer->deadline_ns = DeadlineNs(operation.timeout);
  Finished finished;
  {
    absl::MutexLock lock(&mutex_);
    started_.insert(transfer);
    Begin(transfer);
    Progress();
    EnsureThread();
    finished.swap(finished_);
  }
  wake_count_.fetch_add(1, std::memory_order_release);
  Notify(finished);
}

void PointToPoint::EnsureThread() {
  if (!ThreadHasWork() || stopping_ || thread_.joinable()) return;
  try {
    thread_ = std::thread([this] { RunThread(); });
  } catch (const std::system_error& error) {
    EndAll(failures_->Report(absl::ResourceExhaustedError(
        absl::StrCat("the thread for asynchronous messages could not be started: ", error.what()))));
  }
}

absl::StatusOr<int> PointToPoint::Run(const Operation& operation) {
  TANDEM_RETURN_IF_ERROR(CheckNew(operation));
  Transfer transfer(operation);
  Waiter waiter(spin_policy_, failures_->word(), operation.timeout);
  bool begun = false;
  while (true) {
    const uint64_t before = Activity();
    Finished finished;
    {
      absl::MutexLock lock(&mutex_);
      if (!std::exchange(begun, true)) Begin(&transfer);
      Progress();
      // A reply for which the ring had no space is left to the thread, because this one may return.
      if (num_replies_ > 0) EnsureThread();
      finished.swap(finished_);
    }
    Notify(finished);  // also wakes another thread, if its transfer is done
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
      Progress();
      idle = !ThreadHasWork();
      if (stopping_) idle = false;
      const int64_t now = SteadyNanoseconds();
      for (const Transfer* transfer : started_) {
        next_ns = std::min(next_ns, transfer->deadline_ns);
        if (transfer->deadline_ns > now) continue;
        EndAll(failures_->Report(TimedOut(transfer->operation)));
        break;  // no transfers are left
      }
      finished.swap(finished_);
    }
    Notify(finished);
    {
      absl::MutexLock lock(&mutex_);
      if (stopping_) return;
      if (!failures_->status().ok()) {
        if (started_.empty()) return;  // no new transfers begin
        continue;                      // the group has failed since Progress, which ends the transfers
      }
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

void PointToPoint::Begin(Transfer* transfer) {
  const Operation& op = transfer->operation;
  if (op.kind != OpKind::kSend) return matcher_.Receive(transfer);
  if (op.root == rank_) return matcher_.SendToSelf(transfer);
  transfer->id = next_id_++;
  const MessageMatcher::Head head = matcher_.Send(transfer);
  Header header = {kMagic,         head.tag, head.bytes, head.id, static_cast<uint8_t>(head.dtype),
                   Type::kMessage, {}};
  if (head.announced) {
    header.type = Type::kRequest;
    ++num_replies_;
  }
  peers_[op.root].outgoing.push_back({header, head.announced ? nullptr : transfer});
}

void PointToPoint::Progress() {
  const uint64_t left = RanksThatLeft();  // read first: everything that they sent is then visible
  if (failures_->word().load(std::memory_order_acquire) != 0) return EndAll(failures_->status());
  for (int s = 0; s < world_size_; ++s) {
    if (s == rank_) continue;
    ProgressReceives(s);
    if (!peers_[s].outgoing.empty()) ProgressSends(s);
  }
  if (left != 0) FailIfAwaited(left);
  if (failures_->word().load(std::memory_order_acquire) != 0) EndAll(failures_->status());
}

void PointToPoint::ProgressSends(int to) {
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
    Finish(send, rank_);
  }
}

void PointToPoint::ProgressReceives(int from) {
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
          !HeaderArrived(from, header)) {
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
    char* const to = matcher_.Destination(from);
    if (to != nullptr) FromRing(to + incoming.moved, ring, size, read, bytes);
    incoming.moved += bytes;
    read += Padded(bytes);
    publish();
    if (incoming.moved < incoming.header.bytes) continue;
    incoming = Incoming();
    matcher_.Complete(from);
  }
}

bool PointToPoint::HeaderArrived(int from, const Header& header) {
  const MessageMatcher::Head head = {header.tag, static_cast<DType>(header.dtype), header.bytes, header.id,
                                     header.type == Type::kRequest};
  switch (header.type) {
    case Type::kMessage:
      return matcher_.BeginEager(from, head);
    case Type::kRequest:
      matcher_.Announced(from, head);
      return true;
    case Type::kGrant:
    case Type::kRefusal: {
      MessageTransfer* const send = matcher_.TakeAnnounced(from, header.id);
      if (send == nullptr) return false;
      if (header.type == Type::kRefusal) {
        Finish(send, rank_);
        return true;
      }
      const Operation& op = send->operation;
      peers_[from].outgoing.push_back(
          {{kMagic, op.tag, send->bytes, header.id, static_cast<uint8_t>(op.dtype), Type::kPayload, {}},
           static_cast<Transfer*>(send)});
      return true;
    }
    case Type::kPayload:
      return matcher_.BeginGranted(from, header.id, header.bytes);
    case Type::kTaken:
      return matcher_.CreditReturned(from, header.bytes);
  }
  return false;
}

void PointToPoint::Reply(int to, Type type, uint64_t id, uint64_t bytes) {
  peers_[to].outgoing.push_back({{kMagic, 0, bytes, id, 0, type, {}}, nullptr});
  ++num_replies_;
}

void PointToPoint::Answer(int to, uint64_t id, bool wanted) {
  Reply(to, wanted ? Type::kGrant : Type::kRefusal, id);
}

void PointToPoint::ReturnCredit(int to, uint64_t bytes) { Reply(to, Type::kTaken, 0, bytes); }

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
    num_replies_ -= peer.outgoing.size();  // it needs no replies any more
    peer.outgoing.clear();
    if (const Operation* op = matcher_.WaitsFor(s); op != nullptr) return fail(*op, s);
  }
  const uint64_t others =
      (world_size_ == 64 ? ~uint64_t{0} : (uint64_t{1} << world_size_) - 1) & ~(uint64_t{1} << rank_);
  if (left != others) return;
  if (const Operation* op = matcher_.WaitsForAnySource(); op != nullptr) fail(*op, rank_ == 0 ? 1 : 0);
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

void PointToPoint::Finish(MessageTransfer* done, absl::StatusOr<int> result) {
  auto* const transfer = static_cast<Transfer*>(done);
  transfer->result = std::move(result);
  if (transfer->done) {
    started_.erase(transfer);
    finished_.push_back(transfer);
  } else {
    transfer->finished.store(true, std::memory_order_release);
  }
}

void PointToPoint::EndAll(const absl::Status& status) {
  for (Peer& peer : peers_) {
    for (const Frame& frame : std::exchange(peer.outgoing, {})) {
      if (frame.send != nullptr) Finish(frame.send, status);
    }
  }
  num_replies_ = 0;
  matcher_.EndAll(status);
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
