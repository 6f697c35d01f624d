// SPDX-License-Identifier: Apache-2.0
#include "rpc/shm/link.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/copy_bytes.h"
#include "base/status.h"
#include "base/ticks.h"

namespace tandem::rpc::shm {
namespace {

constexpr size_t kCopyInline = 1024;            // larger slices are copied to payload memory
constexpr size_t kPartBytes = size_t{1} << 20;  // largest part of a message sent in parts
constexpr size_t kLeastPart = 64 << 10;
// Limits the records handled per call that complete no message, so that a peer which sends them endlessly
// does not keep a thread from its other work.
constexpr int kRecordsInTurn = 64;
// The pages that BorrowMemory leaves free (an eighth), so that messages which must be copied can still be
// sent.
size_t Reserve(const Geometry& geometry) { return geometry.pages / 8; }

// Truncates a text that does not fit into a record.
std::string CutText(std::string text) {
  if (text.size() <= kMaxText) return text;
  const std::string note = absl::StrCat(" [cut from ", text.size(), " bytes]");
  text.resize(kMaxText - note.size());
  return text + note;
}

}  // namespace

// A received block of payload memory, released to the peer when dropped.
class Received {
 public:
  Received(std::shared_ptr<Link> link, uint32_t block, size_t bytes)
      : link_(std::move(link)), block_(block), bytes_(bytes) {
    link_->held_bytes_.fetch_add(bytes_, std::memory_order_relaxed);
  }
  ~Received() {
    link_->held_bytes_.fetch_sub(bytes_, std::memory_order_relaxed);
    link_->ReleaseToPeer(block_);
  }
  Received(const Received&) = delete;
  Received& operator=(const Received&) = delete;

 private:
  const std::shared_ptr<Link> link_;
  const uint32_t block_;
  const size_t bytes_;
};

Link::Link(Side side, const Geometry& geometry, std::unique_ptr<ipc::MemoryFile> memory,
           ipc::Descriptor socket, std::string peer, size_t max_message_bytes)
    : geometry_(geometry),
      memory_(std::move(memory)),
      socket_(std::move(socket)),
      peer_(std::move(peer)),
      max_message_bytes_(max_message_bytes),
      out_(static_cast<int>(side)),
      out_payload_(memory_->data() + geometry.payload_offset[out_]),
      in_payload_(memory_->data() + geometry.payload_offset[1 - out_]),
      in_released_(
          reinterpret_cast<std::atomic<uint32_t>*>(memory_->data() + geometry.released_offset[1 - out_])),
      arena_(reinterpret_cast<std::atomic<uint32_t>*>(memory_->data() + geometry.released_offset[out_]),
             static_cast<uint32_t>(geometry.pages)),
      writer_(memory_->data() + geometry.records_offset[out_], geometry.records_bytes, &out().written,
              &out().read),
      reader_(memory_->data() + geometry.records_offset[1 - out_], geometry.records_bytes, &in().written,
              &in().read) {
  TANDEM_CHECK(memory_->size() == geometry.total_bytes);
  for (const size_t offset : geometry.payload_offset)
    memory_->PreferHugePages(offset, geometry.payload_bytes);
}

// ---- Sending

void Link::Send(Message message) {
  message.text = CutText(std::move(message.text));
  Discarded dead;
  absl::ReleasableMutexLock lock(&send_mutex_);
  dead.reserve(1);
  Queued queued{std::move(message)};
  if (broken()) {
    dead.push_back(std::move(queued.message));
  } else if (queue_.empty() && Write(queued, /*may_copy=*/true) == Wrote::kAll) {
    dead.push_back(std::move(queued.message));
  } else {
    queued_.fetch_add(1, std::memory_order_relaxed);
    queued_bytes_.fetch_add(queued.message.body.size(), std::memory_order_relaxed);
    queue_.push_back(std::move(queued));
    MoveQueueLocked(&dead);
  }
  lock.Release();
}

bool Link::MoveQueue() {
  Discarded dead;
  absl::ReleasableMutexLock lock(&send_mutex_);
  const bool moved = MoveQueueLocked(&dead);
  lock.Release();
  return moved;
}

bool Link::MoveQueueLocked(Discarded* dead) {
  if (queue_.empty() || broken()) return false;
  // Requested before the queue is checked: space that the peer frees later then wakes this end.
  out().wants_space.store(1, std::memory_order_seq_cst);
  const int64_t now_ns = SteadyNanoseconds();
  bool moved = false, may_copy = true;
  for (size_t i = 0; i < queue_.size();) {
    Queued& queued = queue_[i];
    if (queued.message.deadline_ns <= now_ns) {  // its caller does not wait any more
      if (queued.sent > 0) Abandon(queued.message.call);
      Unqueue(i, dead);
      continue;
    }
    switch (Write(queued, may_copy)) {
      case Wrote::kAll:
        moved = true;
        Unqueue(i, dead);
        break;
      case Wrote::kSome:  // try again: more may fit
        moved = true;
        break;
      // Messages that need no memory may overtake: calls do not depend on one another.
      case Wrote::kNoMemory:
        may_copy = false;
        ++i;
        break;
      case Wrote::kNoRecordSpace:
      case Wrote::kBroken:
        return moved;
    }
  }
  if (queue_.empty()) out().wants_space.store(0, std::memory_order_seq_cst);
  return moved;
}

void Link::Unqueue(size_t index, Discarded* dead) {
  Message& message = queue_[index].message;
  queued_.fetch_sub(1, std::memory_order_relaxed);
  queued_bytes_.fetch_sub(message.body.size(), std::memory_order_relaxed);
  dead->push_back(std::move(message));
  queue_.erase(queue_.begin() + index);
}

void Link::Drop(uint64_t call) {
  Discarded dead;
  absl::ReleasableMutexLock lock(&send_mutex_);
  for (size_t i = 0; i < queue_.size(); ++i) {
    if (queue_[i].message.call != call || queue_[i].message.kind == RecordKind::kAbandon) continue;
    if (queue_[i].sent > 0) Abandon(call);
    Unqueue(i, &dead);
    break;
  }
  lock.Release();
}

// Sends the notice that the call's partly sent message ends here. No other message may be sent in parts until
// the peer has been told.
void Link::Abandon(uint64_t call) {
  Queued abandon;
  abandon.message.kind = RecordKind::kAbandon;
  abandon.message.call = call;
  if (Write(abandon, /*may_copy=*/false) == Wrote::kAll || broken()) return;
  queued_.fetch_add(1, std::memory_order_relaxed);
  queue_.push_back(std::move(abandon));
}

Link::Wrote Link::Write(Queued& queued, bool may_copy) {
  const absl::StatusOr<bool> room = writer_.HasRoom();
  if (!room.ok()) {
    Break(room.status());
    return Wrote::kBroken;
  }
  if (!*room) return Wrote::kNoRecordSpace;
  const Message& message = queued.message;
  if (queued.sent == 0 && PlaceAll(message.body, may_copy)) {
    if (message.kind == RecordKind::kAbandon) in_parts_ = false;
    Publish(message, /*first=*/true, /*more=*/false);
    return Wrote::kAll;
  }
  const bool first = queued.sent == 0;
  if (!may_copy || (first && in_parts_)) return Wrote::kNoMemory;
  if (!PlacePart(queued)) return Wrote::kNoMemory;
  in_parts_ = queued.sent < message.body.size();
  Publish(message, first, /*more=*/in_parts_);
  return in_parts_ ? Wrote::kSome : Wrote::kAll;
}

bool Link::IsOwn(const Slice& slice) const {
  const auto at = reinterpret_cast<uintptr_t>(slice.data());
  const auto begin = reinterpret_cast<uintptr_t>(out_payload_);
  return at >= begin && at < begin + geometry_.payload_bytes;
}

bool Link::PlaceAll(const Bytes& body, bool may_copy) {
  draft_.segments.clear();
  draft_inline_.clear();
  const absl::Span<const Slice> slices = body.slices();
  size_t i = 0;
  while (i < slices.size()) {
    const Slice& slice = slices[i];
    if (IsOwn(slice)) {
      if (draft_.segments.size() == kMaxSegments) break;
      const size_t offset = slice.data() - out_payload_;
      const uint32_t block = arena_.BlockOf(static_cast<uint32_t>(offset / kPage));
      draft_.segments.push_back({block, static_cast<uint32_t>(slice.size()), offset});
      ++i;
      continue;
    }
    if (slice.size() <= kCopyInline && draft_inline_.size() + slice.size() <= kMaxInline) {
      const bool joins = !draft_.segments.empty() && draft_.segments.back().block == SegmentRef::kInline;
      if (!joins && draft_.segments.size() == kMaxSegments) break;
      if (!joins) draft_.segments.push_back({});
      draft_.segments.back().bytes += static_cast<uint32_t>(slice.size());
      draft_inline_.append(slice.data(), slice.size());
      ++i;
      continue;
    }
    size_t end = i, bytes = 0;  // a run of slices outside this payload memory becomes one block
    for (; end < slices.size() && !IsOwn(slices[end]); ++end) bytes += slices[end].size();
    if (!may_copy || !PlaceRun(slices.subspan(i, end - i), bytes)) break;
    i = end;
  }
  if (i == slices.size()) return true;
  for (const uint32_t block : draft_blocks_) arena_.Release(block);
  draft_blocks_.clear();
  return false;
}

bool Link::PlaceRun(absl::Span<const Slice> slices, size_t bytes) {
  if (draft_.segments.size() == kMaxSegments || bytes > geometry_.payload_bytes / 4) return false;
  const std::optional<uint32_t> block = arena_.Take(bytes, /*reserve=*/0);
  if (!block.has_value()) return false;
  char* to = out_payload_ + *block * kPage;
  for (const Slice& slice : slices) {
    CopyBytes(to, slice.data(), slice.size());
    to += slice.size();
  }
  draft_blocks_.push_back(*block);
  draft_.segments.push_back({*block, static_cast<uint32_t>(bytes), *block * kPage});
  return true;
}

bool Link::PlacePart(Queued& queued) {
  draft_.segments.clear();
  draft_inline_.clear();
  const Bytes& body = queued.message.body;
  const size_t most = std::min(body.size() - queued.sent, kPartBytes);
  size_t bytes;
  const std::optional<uint32_t> block = arena_.TakeUpTo(most, std::min(most, kLeastPart), &bytes);
  if (!block.has_value()) return false;
  char* to = out_payload_ + *block * kPage;
  const Bytes part = body.Sub(queued.sent, bytes);
  for (const Slice& slice : part.slices()) {
    CopyBytes(to, slice.data(), slice.size());
    to += slice.size();
  }
  draft_blocks_.push_back(*block);
  draft_.segments.push_back({*block, static_cast<uint32_t>(bytes), *block * kPage});
  queued.sent += bytes;
  return true;
}

void Link::Publish(const Message& message, bool first, bool more) {
  draft_.kind = message.kind;
  draft_.more = more;
  draft_.call = message.call;
  draft_.deadline_ns = message.deadline_ns;
  draft_.code = message.code;
  draft_.text = first ? absl::string_view(message.text) : absl::string_view();
  draft_.inline_bytes = draft_inline_;
  for (const SegmentRef& segment : draft_.segments) {
    if (segment.block != SegmentRef::kInline) arena_.Sent(segment.block);
  }
  encoded_.resize(kMaxRecord);
  writer_.Put(absl::string_view(encoded_.data(), EncodeRecord(draft_, encoded_.data())));
  for (const uint32_t block : draft_blocks_) arena_.Release(block);
  draft_blocks_.clear();
  WakePeer();
}

std::shared_ptr<char> Link::BorrowMemory(size_t bytes) {
  if (bytes <= kCopyInline || bytes > geometry_.payload_bytes / 2 || broken()) return nullptr;
  const std::optional<uint32_t> block = arena_.Take(bytes, Reserve(geometry_));
  if (!block.has_value()) return nullptr;
  return std::shared_ptr<char>(out_payload_ + *block * kPage,
                               [link = shared_from_this(), block = *block](char*) {
                                 link->arena_.Release(block);
                                 if (link->has_queue()) link->MoveQueue();
                               });
}

// ---- Receiving

bool Link::Receive(Message* message) {
  for (int records = 0; records < kRecordsInTurn && !broken(); ++records) {
    const absl::StatusOr<bool> next = reader_.Next(&copy_);
    if (!next.ok()) {
      Break(next.status());
      return false;
    }
    if (!*next) return false;
    WakePeerForSpace();
    if (absl::Status parsed = ParseRecord(copy_, geometry_.payload_bytes, &record_); !parsed.ok()) {
      Break(parsed);
      return false;
    }
    if (Accept(record_, message)) return true;
  }
  return false;
}

bool Link::Damaged(absl::string_view what) {
  Break(absl::DataLossError(absl::StrCat("the shared memory is damaged: ", what)));
  return false;
}

bool Link::Accept(const Record& record, Message* message) {
  const bool from_client = record.kind == RecordKind::kRequest || record.kind == RecordKind::kCancel;
  if (record.kind != RecordKind::kAbandon && from_client != (out_ == static_cast<int>(Side::kServer))) {
    return Damaged("a record came that only the other side sends");
  }
  if (record.kind == RecordKind::kAbandon) {
    if (!has_partial_ || partial_.call != record.call) return Damaged("nothing was to be abandoned");
    has_partial_ = false;
    partial_ = Message();
    return false;
  }
  const bool goes_on = has_partial_ && partial_.call == record.call && partial_.kind == record.kind;
  if (record.more && has_partial_ && !goes_on) return Damaged("two messages come in parts at once");
  if (!goes_on) {
    Message& begun = record.more ? partial_ : *message;
    begun.kind = record.kind;
    begun.call = record.call;
    begun.deadline_ns = record.deadline_ns;
    begun.code = record.code;
    begun.text = std::string(record.text);
    begun.body = Bytes();
    begun.too_large = false;
    AddBody(record, /*copy=*/record.more, &begun);
    has_partial_ |= record.more;
    return !record.more;
  }
  // Parts are copied, because the whole message may be larger than the payload memory.
  AddBody(record, /*copy=*/true, &partial_);
  if (record.more) return false;
  *message = std::move(partial_);
  partial_ = Message();
  has_partial_ = false;
  return true;
}

void Link::AddBody(const Record& record, bool copy, Message* message) {
  size_t bytes = message->body.size();
  for (const SegmentRef& segment : record.segments) bytes += segment.bytes;
  if (bytes > max_message_bytes_) message->too_large = true;
  if (message->too_large) message->body = Bytes();
  Slice inline_bytes;
  if (!record.inline_bytes.empty() && !message->too_large) {
    inline_bytes = Slice::FromString(std::string(record.inline_bytes));
  }
  size_t inline_used = 0;
  for (const SegmentRef& segment : record.segments) {
    if (segment.block == SegmentRef::kInline) {
      if (!message->too_large) message->body.Append(inline_bytes.Sub(inline_used, segment.bytes));
      inline_used += segment.bytes;
      continue;
    }
    if (message->too_large) {
      ReleaseToPeer(segment.block);
      continue;
    }
    const char* data = in_payload_ + segment.offset;
    // A request begins with its header, which is usually inline. A header in memory that the client can still
    // write to must be copied before it is parsed.
    const bool header = message->kind == RecordKind::kRequest && message->body.empty();
    if (!copy && !header && held_bytes() + segment.bytes <= geometry_.payload_bytes / 2) {
      message->body.Append(Slice(std::make_shared<Received>(shared_from_this(), segment.block, segment.bytes),
                                 data, segment.bytes));
      continue;
    }
    std::shared_ptr<char> memory = copies_.Get(segment.bytes);
    CopyBytes(memory.get(), data, segment.bytes);
    ReleaseToPeer(segment.block);
    const char* copied = memory.get();
    message->body.Append(Slice(std::move(memory), copied, segment.bytes));
  }
}

void Link::ReleaseToPeer(uint32_t block) {
  in_released_[block].fetch_add(1, std::memory_order_seq_cst);
  WakePeerForSpace();
}

// ---- Waking and ending

void Link::WakePeerForSpace() {
  if (in().wants_space.load(std::memory_order_seq_cst) != 0 &&
      in().wants_space.exchange(0, std::memory_order_seq_cst) != 0) {
    WakePeer();
  }
}

void Link::WakePeer() {
  std::atomic<uint32_t>& asleep = peer_end().asleep;
  if (asleep.load(std::memory_order_seq_cst) == kAwake) return;
  const uint32_t how = asleep.exchange(kAwake, std::memory_order_seq_cst);
  if (how == kAtFutex) {
    ipc::FutexWake(&asleep);
  } else if (how != kAwake) {
    // If the socket is full, the peer has enough bytes to wake it.
    (void)!send(socket_.get(), "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
  }
}

void Link::WakeOwn() {
  if (my_end().asleep.exchange(kAwake, std::memory_order_seq_cst) == kAtFutex) {
    ipc::FutexWake(&my_end().asleep);
  }
}

bool Link::DrainSocket() {
  char bytes[16];
  for (int packets = 0; packets < kRecordsInTurn; ++packets) {
    const ssize_t received = recv(socket_.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
    if (received > 0 || (received < 0 && errno == EINTR)) continue;
    return received < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
  }
  return true;
}

void Link::Break(const absl::Status& why) {
  {
    absl::MutexLock lock(&failure_mutex_);
    if (broken()) return;
    failure_ = Annotate(why, absl::StrCat("shared memory with ", peer_));
    broken_.store(true, std::memory_order_release);
  }
  shutdown(socket_.get(), SHUT_RDWR);
  WakeOwn();
}

absl::Status Link::failure() const {
  absl::MutexLock lock(&failure_mutex_);
  return failure_;
}

void Link::Close(const absl::Status& why) {
  Break(why);
  std::deque<Queued> dropped;
  absl::ReleasableMutexLock lock(&send_mutex_);
  dropped.swap(queue_);
  queued_.store(0, std::memory_order_relaxed);
  queued_bytes_.store(0, std::memory_order_relaxed);
  lock.Release();
}

}  // namespace tandem::rpc::shm
