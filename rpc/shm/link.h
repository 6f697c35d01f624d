#ifndef TANDEM_RPC_SHM_LINK_H_
#define TANDEM_RPC_SHM_LINK_H_

// One end of a shared-memory connection: sends messages and receives them. The same for both ends.
//
// A message is a record with small parts inline and large ones in payload memory: those that were made there
// (Lend) travel as they are, others are copied in. What finds no room waits in a queue, which whoever
// receives also moves on; a message too large for the payload memory that is free goes in parts, which the
// receiver puts together. Received parts of payload are read in place: their memory goes back to the peer
// when the last slice is dropped. The peer could still write there: what must not change between a check and
// its use is to be copied first (the beginning of a request, its header, always is). While this process holds
// more than half of it (parked pushes, answers that the application keeps), what comes in is copied out at
// once, so that traffic goes on.

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "base/buffer_pool.h"
#include "base/bytes.h"
#include "base/ipc/descriptor.h"
#include "base/ipc/memory_file.h"
#include "rpc/shm/arena.h"
#include "rpc/shm/layout.h"
#include "rpc/shm/record.h"

namespace tandem::rpc::shm {

enum class Side { kClient = 0, kServer = 1 };

inline constexpr int64_t kNoDeadline = INT64_MAX;

struct Message {
  RecordKind kind = RecordKind::kRequest;
  uint64_t call = 0;
  int64_t deadline_ns = kNoDeadline;  // since the Unix epoch
  absl::StatusCode code = absl::StatusCode::kOk;
  std::string text;  // the method, or why it failed; cut to kMaxText
  Bytes body;
  bool too_large = false;  // received: the body was longer than allowed and is left out
};

// Sending is thread-safe; receiving is for one thread at a time. Held by its connection, by received slices
// and by lent memory.
class Link : public std::enable_shared_from_this<Link> {
 public:
  // `peer` names the other process in errors. Bodies of more than `max_message_bytes` are not received.
  Link(Side side, const Geometry& geometry, std::unique_ptr<ipc::MemoryFile> memory, ipc::Descriptor socket,
       std::string peer, size_t max_message_bytes);
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // ---- Sending.

  // Sends, or keeps the message in the queue; never blocks. After Break nothing happens.
  void Send(Message message);
  // Takes a message of this call out of the queue, if it is still there.
  void Drop(uint64_t call);
  // Payload memory for a part of a message, 64-byte aligned, or nullptr when there is none. It may be sent
  // any number of times; dropped unsent, it is free again.
  std::shared_ptr<char> BorrowMemory(size_t bytes);
  // Sends what has found room since; whether anything was sent.
  bool MoveQueue();
  bool has_queue() const { return queued_.load(std::memory_order_relaxed) > 0; }
  // Bytes of messages that wait in the queue.
  size_t queued_bytes() const { return queued_bytes_.load(std::memory_order_relaxed); }

  // ---- Receiving.

  // The next message; false when none is there, or after many parts of one: HasIncoming() knows. A damaged
  // ring breaks the link.
  bool Receive(Message* message);
  bool HasIncoming() const { return !broken() && reader_.HasMore(); }

  // ---- Waiting, by whoever receives.

  // From here on the peer wakes this end, in that way; to be followed by a look whether something is there.
  void FallAsleep(Asleep how) { my_end().asleep.store(how, std::memory_order_seq_cst); }
  void WakeUp() { my_end().asleep.store(kAwake, std::memory_order_seq_cst); }
  // Sleeps at the futex, after FallAsleep(kAtFutex), at most `ns`.
  void SleepAtFutex(int64_t ns) { ipc::FutexWait(&my_end().asleep, kAtFutex, ns); }
  // Wakes this process's own sleeper at the futex, if there is one.
  void WakeOwn();
  // Readable when the peer has woken this end, or has ended.
  int socket() const { return socket_.get(); }
  // Reads the wake-ups from the socket; false when the peer has ended.
  bool DrainSocket();

  // ---- The end.

  // The first call counts: no message goes or comes any more, and the peer sees the end of the connection.
  void Break(const absl::Status& why);
  bool broken() const { return broken_.load(std::memory_order_acquire); }
  absl::Status failure() const;
  // Break, and drops what is queued. Whoever owns the connection does this in the end: messages in the queue
  // may hold the link.
  void Close(const absl::Status& why);

  const std::string& peer() const { return peer_; }
  // Bytes of received payload that this process has not yet given back.
  size_t held_bytes() const { return held_bytes_.load(std::memory_order_relaxed); }
  // Bytes of the payload memory for sending that are in nobody's use.
  size_t free_bytes() { return arena_.free_pages() * kPage; }

 private:
  friend class Received;
  enum class Wrote { kAll, kSome, kNoRecordRoom, kNoMemory, kBroken };
  // Messages that were dealt with: to be destroyed when no lock is held, since memory that was lent comes
  // back with them.
  using Dead = std::vector<Message>;
  struct Queued {
    Message message;
    size_t sent = 0;  // bytes of the body, in parts
  };

  Control& control() { return *reinterpret_cast<Control*>(memory_->data()); }
  const Control& control() const { return *reinterpret_cast<const Control*>(memory_->data()); }
  Control::Direction& out() { return control().directions[out_]; }
  Control::Direction& in() { return control().directions[1 - out_]; }
  Control::End& my_end() { return control().ends[out_]; }
  Control::End& peer_end() { return control().ends[1 - out_]; }

  // Without `may_copy`, only what needs no fresh memory is written.
  Wrote Write(Queued& queued, bool may_copy) ABSL_EXCLUSIVE_LOCKS_REQUIRED(send_mutex_);
  bool PlaceAll(const Bytes& body, bool may_copy) ABSL_EXCLUSIVE_LOCKS_REQUIRED(send_mutex_);
  bool PlaceRun(absl::Span<const Slice> slices, size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(send_mutex_);
  bool PlacePart(Queued& queued) ABSL_EXCLUSIVE_LOCKS_REQUIRED(send_mutex_);
  void Publish(const Message& message, bool first, bool more) ABSL_EXCLUSIVE_LOCKS_REQUIRED(send_mutex_);
  void Abandon(uint64_t call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(send_mutex_);
  bool MoveQueueLocked(Dead* dead) ABSL_EXCLUSIVE_LOCKS_REQUIRED(send_mutex_);
  void Unqueue(size_t index, Dead* dead) ABSL_EXCLUSIVE_LOCKS_REQUIRED(send_mutex_);
  // Whether it lies in the payload memory that this end sends from.
  bool IsOwn(const Slice& slice) const;

  bool Accept(const Record& record, Message* message);
  bool Damaged(absl::string_view what);
  void AddBody(const Record& record, bool copy, Message* message);
  void GiveBack(uint32_t block);
  void WakePeer();
  void WakePeerForRoom();

  const Geometry geometry_;
  const std::unique_ptr<ipc::MemoryFile> memory_;
  const ipc::Descriptor socket_;
  const std::string peer_;
  const size_t max_message_bytes_;
  const int out_;  // the direction this end sends in, and its number
  char* const out_payload_;
  char* const in_payload_;
  std::atomic<uint32_t>* const in_released_;
  Arena arena_;

  absl::Mutex send_mutex_;
  RecordWriter writer_ ABSL_GUARDED_BY(send_mutex_);
  std::deque<Queued> queue_ ABSL_GUARDED_BY(send_mutex_);
  bool in_parts_ ABSL_GUARDED_BY(send_mutex_) = false;  // a message of the queue is half sent; one at a time
  // The record being made, and the blocks that were taken for it.
  Record draft_ ABSL_GUARDED_BY(send_mutex_);
  std::string draft_inline_ ABSL_GUARDED_BY(send_mutex_);
  std::vector<uint32_t> draft_blocks_ ABSL_GUARDED_BY(send_mutex_);
  std::string encoded_ ABSL_GUARDED_BY(send_mutex_);
  std::atomic<size_t> queued_{0};
  std::atomic<size_t> queued_bytes_{0};

  // By whoever receives.
  RecordReader reader_;
  std::string copy_;
  Record record_;
  BufferPool copies_;         // of what is copied out
  bool has_partial_ = false;  // a message in parts has begun
  Message partial_;

  std::atomic<size_t> held_bytes_{0};

  std::atomic<bool> broken_{false};
  mutable absl::Mutex failure_mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(failure_mutex_);
};

}  // namespace tandem::rpc::shm

#endif  // TANDEM_RPC_SHM_LINK_H_
