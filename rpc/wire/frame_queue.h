// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_WIRE_FRAME_QUEUE_H_
#define TANDEM_RPC_WIRE_FRAME_QUEUE_H_

// Queues messages that wait to be sent on a stream. Like frame.h, nothing here is thread-safe.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "base/bytes.h"
#include "rpc/wire/response_source.h"
#include "tandem/v1/stream.pb.h"

namespace tandem::rpc {

// Queues messages and splits them into frames when they are sent. Messages are sent round-robin, one frame at
// a time. Consecutive short messages are sent as one batch if the peer accepts batches. The first frame tells
// the peer that this side accepts them.
class FrameQueue {
 public:
  // A message taken out of the queue while its next frame is built. Building may take long, so it is done
  // without the lock that guards the queue.
  class OutgoingMessage {
   public:
    // Returns the wire form of the next frame, which shares the message's memory, or of the batch. Called
    // once.
    Bytes Frame();

   private:
    friend class FrameQueue;
    // Returns the approximate size in a batch. More than kMaxBatchedMessage if the message cannot be sent in
    // a batch.
    size_t batched_bytes() const;
    // Returns the approximate memory that the rest of the message uses. For a response that is produced while
    // it is sent, this is one frame.
    size_t waiting_bytes() const;

    v1::StreamFrame header_;
    Bytes bytes_;
    std::unique_ptr<ResponseSource> source_;  // set instead of `bytes_`
    size_t size_ = 0;
    size_t sent_ = 0;
    std::vector<OutgoingMessage> others_;  // the short messages sent in the same batch
  };

  // Adds a message. `header` is the header of its first frame, with `call` set; message_bytes is set where it
  // is needed. The size of a ResponseSource must be at least one.
  void Add(v1::StreamFrame header, Bytes message);
  void Add(v1::StreamFrame header, std::unique_ptr<ResponseSource> message);

  // Takes the next message out of the queue, together with the short messages that follow it if `batches` is
  // true. The queue must not be empty, and every OutgoingMessage taken before must
  // have been returned with PutBack.
  OutgoingMessage Take(bool batches);
  // Returns a message to the queue after its frame was built. If the message is complete, or was dropped in
  // the meantime, the rest stays in `*turn`. The caller then destroys it without holding a lock.
  void PutBack(OutgoingMessage* turn);
  // Returns the wire form of the next frame or batch: Take, Frame and PutBack in one call.
  Bytes Next(bool batches);

  bool empty() const { return messages_.empty(); }
  // Returns the approximate memory that the queued messages use. Bytes that were sent, or that are not
  // produced yet, do not count.
  size_t bytes() const { return bytes_; }

  // The state of the dropped messages. The peer knows about a message only if a part of it was sent.
  enum class Dropped { kNothing, kUnsent, kPartlySent };
  // Removes the call's messages from the queue. They are moved to `taken`, so that the caller can destroy
  // them without a lock, or destroyed here if `taken` is nullptr.
  Dropped Drop(uint64_t call, std::deque<OutgoingMessage>* taken = nullptr);

  // Removes and returns all messages, which the caller destroys without holding a lock.
  std::deque<OutgoingMessage> Clear();

 private:
  void Add(OutgoingMessage message);
  OutgoingMessage Pop();

  std::deque<OutgoingMessage> messages_;
  size_t bytes_ = 0;
  uint64_t out_ = 0;   // the call whose message is out; 0 if none is, or if it was dropped
  bool said_ = false;  // the peer was told that this side accepts batches
};

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_WIRE_FRAME_QUEUE_H_
