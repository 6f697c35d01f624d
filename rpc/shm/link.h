// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_SHM_LINK_H_
#define TANDEM_RPC_SHM_LINK_H_

// One end of a shared-memory connection: sends and receives messages. Both ends use the same class.
//
// Sending: a message is a record with small parts inline and large parts in payload memory. Parts that were
// built in memory of BorrowMemory are sent without a copy; others are copied. A message that does not fit
// waits in a queue, which the receiving thread also advances. A message larger than the free payload memory
// is sent in parts, and the receiver reassembles it.
//
// Receiving: parts in payload memory are read in place, and their memory is released to the peer when the
// last slice is dropped. The peer could still write to that memory. Data that must not change between a check
// and its use must therefore be copied first; the beginning of a request, which contains its header, always
// is. While this process holds more than half of the payload memory (deferred pushes, responses that the
// application keeps), incoming data is copied at once, so that the memory is free for further messages.

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

// A message of a connection.
struct Message {
  RecordKind kind = RecordKind::kRequest;
  uint64_t call = 0;
  int64_t deadline_ns = kNoDeadline;  // in ns of CLOCK_MONOTONIC, which both processes share
  absl::StatusCode code = absl::StatusCode::kOk;
  // The method, or the error's message; truncated to kMaxText.
  std::string text;
  Bytes body;
  // Set on receipt: the body was longer than allowed and was omitted.
  bool too_large = false;
};

// One end of a connection. Sending is thread-safe; one thread at a time may receive. The connection, received
// slices and borrowed memory hold references to it.
class Link : public std::enable_shared_from_this<Link> {
 public:
  // `peer` names the other process in errors. Bodies of more than `max_message_bytes` are not received: see
  // Message::too_large.
  Link(Side side, const Geometry& geometry, std::unique_ptr<ipc::MemoryFile> memory, ipc::Descriptor socket,
       std::string peer, size_t max_message_bytes);
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // ---- Sending.

  // Sends the message, or stores it in the queue. Never blocks. No effect after Break.
  void Send(Message message);
  // Removes the call's message from the queue, if it is still there.
  void Drop(uint64_t call);
  // Returns payload memory for a part of a message, 64-byte aligned. Returns nullptr if there is none, or if
  // `bytes` is at most 1 KiB or more than half of the payload memory. The memory may be sent any number of
  // times. It is freed when the pointer is dropped and the peer has released it.
  std::shared_ptr<char> BorrowMemory(size_t bytes);
  // Sends queued messages that now fit. Returns true if anything was sent.
  bool MoveQueue();
  bool has_queue() const { return queued_.load(std::memory_order_relaxed) > 0; }
  // Returns the size of the bodies in the queue.
  size_t queued_bytes() const { return queued_bytes_.load(std::memory_order_relaxed); }

  // ---- Receiving.

  // Receives the next message. Returns false if there is none, or after handling many records that do not
  // complete a message; HasIncoming() tells the two apart. A damaged ring breaks the link.
  bool Receive(Message* message);
  bool HasIncoming() const { return !broken() && reader_.HasMore(); }

  // ---- Waiting, by the receiving thread.

  // Asks the peer to wake this end in way `how`. The caller must then check once more whether something has
  // arrived before it sleeps.
  void FallAsleep(SleepState how) { my_end().asleep.store(how, std::memory_order_seq_cst); }
  void WakeUp() { my_end().asleep.store(kAwake, std::memory_order_seq_cst); }
  // Sleeps on the futex for at most `ns`. FallAsleep(kAtFutex) must have been called.
  void SleepAtFutex(int64_t ns) { ipc::FutexWait(&my_end().asleep, kAtFutex, ns); }
  // Wakes the thread of this process that sleeps on the futex, if there is one.
  void WakeOwn();
  // Returns the socket. It is readable when the peer has woken this end, or has ended.
  int socket() const { return socket_.get(); }
  // Reads the wake-up bytes from the socket. Returns false if the peer has ended.
  bool DrainSocket();

  // ---- The end.

  // Ends the connection with error `why`: no message is sent or received any more, and the peer sees the end.
  // Only the first call has an effect.
  void Break(const absl::Status& why);
  bool broken() const { return broken_.load(std::memory_order_acquire); }
  // Returns the error of Break.
  absl::Status failure() const;
  // Calls Break and drops the queue. The owner of the connection must call this in the end, because queued
  // messages may hold references to the link.
  void Close(const absl::Status& why);

  const std::string& peer() const { return peer_; }
  // Returns the size of received payload that this process has not released yet.
  size_t held_bytes() const { return held_bytes_.load(std::memory_order_relaxed); }
  // Returns the size of the payload memory for sending that is not in use.
  size_t free_bytes() { return arena_.free_pages() * kPage; }

 private:
  friend class Received;
  enum class Wrote { kAll, kSome, kNoRecordSpace, kNoMemory, kBroken };
  // Messages to destroy without holding a lock: destroying them releases borrowed memory.
  using Discarded = std::vector<Message>;
  struct Queued {
    Message message;
    size_t sent = 0;  // bytes of the body sent so far, in parts
  };

  Control& control() { return *reinterpret_cast<Control*>(memory_->data()); }
  const Control& control() const { return *reinterpret_cast<const Control*>(memory_->data()); }
  Control::Direction& out() { return control().directions[out_]; }
  Control::Direction& in() { return control().directions[1 - out_]; }
  Control::End& my_end() { return control().ends[out_]; }
  Control::End& peer_end() { return control().ends[1 - out_]; }

  // Writes the message, or its next part. With `may_copy` false, writes only what needs no new payload
  // memory.
  Wrote Write(Queued& queued, bool may_copy) ABSL_EXCLUSIVE_LOCKS_REQUIRED(send_mutex_);
  // Fills the draft with the whole body. Returns false if there is not enough memory.
  bool PlaceAll(const Bytes& body, bool may_copy) ABSL_EXCLUSIVE_LOCKS_REQUIRED(send_mutex_);
  // Copies the slices to one block and adds it to the draft.
  bool PlaceRun(absl::Span<const Slice> slices, size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(send_mutex_);
  // Fills the draft with the next part of the body and counts it as sent.
  bool PlacePart(Queued& queued) ABSL_EXCLUSIVE_LOCKS_REQUIRED(send_mutex_);
  // Writes the draft to the ring and wakes the peer.
  void Publish(const Message& message, bool first, bool more) ABSL_EXCLUSIVE_LOCKS_REQUIRED(send_mutex_);
  // Tells the peer that the rest of a message sent in parts will not follow.
  void Abandon(uint64_t call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(send_mutex_);
  bool MoveQueueLocked(Discarded* dead) ABSL_EXCLUSIVE_LOCKS_REQUIRED(send_mutex_);
  void Unqueue(size_t index, Discarded* dead) ABSL_EXCLUSIVE_LOCKS_REQUIRED(send_mutex_);
  // Returns true if the slice lies in the payload memory from which this end sends.
  bool IsOwn(const Slice& slice) const;

  // Handles a record. Returns true if it completes `*message`.
  bool Accept(const Record& record, Message* message);
  bool Damaged(absl::string_view what);
  // Adds the record's segments to the message's body.
  void AddBody(const Record& record, bool copy, Message* message);
  // Releases a received block to the peer.
  void ReleaseToPeer(uint32_t block);
  void WakePeer();
  // Wakes the peer if it waits for space.
  void WakePeerForSpace();

  const Geometry geometry_;
  const std::unique_ptr<ipc::MemoryFile> memory_;
  const ipc::Descriptor socket_;
  const std::string peer_;
  const size_t max_message_bytes_;
  const int out_;  // the direction in which this end sends, and its index
  char* const out_payload_;
  char* const in_payload_;
  std::atomic<uint32_t>* const in_released_;
  Arena arena_;

  absl::Mutex send_mutex_;
  RecordWriter writer_ ABSL_GUARDED_BY(send_mutex_);
  std::deque<Queued> queue_ ABSL_GUARDED_BY(send_mutex_);
  // A queued message has been sent in part; only one at a time may be.
  bool in_parts_ ABSL_GUARDED_BY(send_mutex_) = false;
  // The record being built, and the blocks taken for it.
  Record draft_ ABSL_GUARDED_BY(send_mutex_);
  std::string draft_inline_ ABSL_GUARDED_BY(send_mutex_);
  std::vector<uint32_t> draft_blocks_ ABSL_GUARDED_BY(send_mutex_);
  std::string encoded_ ABSL_GUARDED_BY(send_mutex_);
  std::atomic<size_t> queued_{0};
  std::atomic<size_t> queued_bytes_{0};

  // These belong to the receiving thread.
  RecordReader reader_;
  std::string copy_;
  Record record_;
  BufferPool copies_;         // memory for data that is copied out
  bool has_partial_ = false;  // a message in parts has begun
  Message partial_;

  std::atomic<size_t> held_bytes_{0};

  std::atomic<bool> broken_{false};
  mutable absl::Mutex failure_mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(failure_mutex_);
};

}  // namespace tandem::rpc::shm

#endif  // TANDEM_RPC_SHM_LINK_H_
