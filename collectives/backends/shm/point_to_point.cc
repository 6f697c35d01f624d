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

constexpr uint32_t kMagic = 0x7032706d;
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
      spin_policy_(SpinPolicyFor(world_size_, UsableProcessors())),
      wakeup_(segment_->area(rank).mailbox_wakeup),
      sends_(world_size_),
      incoming_(world_size_),
      space_seen_(world_size_, 0) {}

PointToPoint::~PointToPoint() {
  Waiter waiter(spin_policy_, failures_->word(), kLeaveTimeout);
  Finished finished;
  while (true) {
    const uint64_t before = Activity();
    bool sending = false;
    {
      absl::MutexLock lock(&mutex_);
      Progress(&finished);
      for (const auto& queue : sends_) sending |= !queue.empty();
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
    if (!started_.empty() && !thread_.joinable()) {
      try {
        thread_ = std::thread([this] { RunThread(); });
      } catch (const std::system_error& error) {
        FinishAll(failures_->Report(absl::ResourceExhaustedError(absl::StrCat(
                      "the thread for asynchronous messages could not be started: ", error.what()))),
                  &finished);
      }
    }
  }
  wake_count_.fetch_add(1, std::memory_order_release);
  Notify(finished);
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
      idle = started_.empty();
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
                 ABSL_NO_THREAD_SAFETY_ANALYSIS { return self->stopping_ || !self->started_.empty(); },
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
    sends_[op.root].push_back(transfer);
  }
}

void PointToPoint::BeginRecv(Transfer* recv, Finished* finished) {
  const Operation& op = recv->operation;
  for (auto it = unexpected_.begin(); it != unexpected_.end(); ++it) {
    if (it->claimed_by != nullptr || it->header.tag != op.tag) continue;
    if (op.root != kAnySource && op.root != it->source) continue;
    const absl::Status fits = Fits(*recv, it->source, it->header);
    if (fits.ok() && !it->complete) {
      it->claimed_by = recv;
    } else if (fits.ok()) {
      Deliver(&*it, recv, finished);
    } else {
      Incoming& incoming = incoming_[it->source];
      if (incoming.unexpected == &*it) incoming.unexpected = nullptr;  // the rest is dropped
      unexpected_bytes_ -= it->header.bytes;
      unexpected_.erase(it);
      Finish(recv, fits, finished);
    }
    return;
  }
  recvs_.push_back(recv);
}

void PointToPoint::SendToSelf(Transfer* send, Finished* finished) {
  const Operation& op = send->operation;
  const Header header = {kMagic, op.tag, send->bytes, static_cast<uint8_t>(op.dtype), {}};
  if (Transfer* const recv = TakeRecv(rank_, op.tag); recv != nullptr) {
    absl::Status fits = Fits(*recv, rank_, header);
    if (fits.ok() && send->bytes > 0) std::memcpy(recv->operation.out.data, op.in.data, send->bytes);
    Finish(recv, fits.ok() ? absl::StatusOr<int>(rank_) : fits, finished);
  } else {
    std::unique_ptr<char[]> data(new char[send->bytes]);
    if (send->bytes > 0) std::memcpy(data.get(), op.in.data, send->bytes);
    unexpected_bytes_ += send->bytes;
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
    if (!sends_[s].empty()) ProgressSends(s, finished);
  }
  if (left != 0) FailIfAwaited(left);
  if (failures_->word().load(std::memory_order_acquire) != 0) FinishAll(failures_->status(), finished);
}

void PointToPoint::ProgressSends(int to, Finished* finished) {
  RingControl& control = segment_->ring_control(rank_, to);
  char* const ring = segment_->ring(rank_, to);
  const size_t size = segment_->geometry().ring_bytes;
  uint64_t written = control.written.load(std::memory_order_relaxed);
  uint64_t& read = space_seen_[to];
  std::deque<Transfer*>& queue = sends_[to];
  const auto publish = [&] {
    Publish(control.written, written, segment_->area(to).mailbox_wakeup, spin_policy_.sleeps_often());
  };
  while (!queue.empty()) {
    Transfer* const send = queue.front();
    if (size - (written - read) < 2 * kAlign) {
      const uint64_t now = control.read.load(std::memory_order_acquire);
      if (now > written || now < read) return (void)failures_->Report(Damaged(to));
      read = now;
      if (size - (written - read) < 2 * kAlign) return;
    }
    const Operation& op = send->operation;
    if (!std::exchange(send->begun, true)) {
      const Header header = {kMagic, op.tag, send->bytes, static_cast<uint8_t>(op.dtype), {}};
      ToRing(ring, size, written, reinterpret_cast<const char*>(&header), sizeof(header));
      written += sizeof(header);
    }
    const size_t space = size - (written - read);  // a multiple of kAlign, like everything written
    const size_t bytes = std::min({send->bytes - send->moved, space, kChunk});
    ToRing(ring, size, written, static_cast<const char*>(op.in.data) + send->moved, bytes);
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
  Incoming& incoming = incoming_[from];
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
      if (header.magic != kMagic || header.bytes > kMostBytes || header.dtype >= kNumDTypes) {
        return (void)failures_->Report(Damaged(from));
      }
      incoming.begun = true;
      read += sizeof(Header);
      if (!ChooseDestination(from, incoming, finished)) return publish();
      if (header.bytes > 0 && available == sizeof(Header)) {
        publish();
        continue;
      }
    } else if (!incoming.placed && !ChooseDestination(from, incoming, finished)) {
      return;
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

bool PointToPoint::ChooseDestination(int from, Incoming& incoming, Finished* finished) {
  const Header& header = incoming.header;
  if (Transfer* const recv = TakeRecv(from, header.tag); recv != nullptr) {
    const absl::Status fits = Fits(*recv, from, header);
    if (fits.ok()) {
      incoming.recv = recv;
    } else {
      Finish(recv, fits, finished);
    }
  } else {
    if (unexpected_bytes_ + header.bytes > kMostUnexpectedBytes) return false;
    unexpected_bytes_ += header.bytes;
    unexpected_.push_back({from, header, std::unique_ptr<char[]>(new char[header.bytes]), false, nullptr});
    incoming.unexpected = &unexpected_.back();
  }
  incoming.placed = true;
  return true;
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
  unexpected_bytes_ -= message->header.bytes;
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
    if (!sends_[s].empty()) return fail(sends_[s].front()->operation, s);
    const Incoming& incoming = incoming_[s];
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
  for (auto& queue : sends_) {
    for (Transfer* send : std::exchange(queue, {})) Finish(send, status, finished);
  }
  for (Transfer* recv : std::exchange(recvs_, {})) Finish(recv, status, finished);
  for (Incoming& incoming : incoming_) {
    if (incoming.recv != nullptr) Finish(std::exchange(incoming.recv, nullptr), status, finished);
  }
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
