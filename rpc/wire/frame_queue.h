#ifndef TANDEM_RPC_WIRE_FRAME_QUEUE_H_
#define TANDEM_RPC_WIRE_FRAME_QUEUE_H_

// What waits to be sent on a stream. As frame.h: nothing is thread-safe.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "base/bytes.h"
#include "rpc/wire/response_source.h"
#include "tandem/v1/stream.pb.h"

namespace tandem::rpc {

// Messages that wait to be sent, cut into frames on the way out. Messages take turns, a frame each; short
// ones that follow each other go as one batch, if the peer takes that. (The first frame says to it that we
// do.)
class FrameQueue {
 public:
  // A message that is out of the queue, for its next frame to be made: under no lock, as that may take a
  // while.
  class Turn {
   public:
    // The wire form of the next frame, over the message's memory, or of the batch. Once.
    Bytes Frame();

   private:
    friend class FrameQueue;
    // Of what it takes up in a batch, about; more than kMaxBatchedMessage if it cannot go in one.
    size_t batched_bytes() const;
    // What it takes up in memory, about: of an answer that is made on the way, one frame.
    size_t waiting_bytes() const;

    v1::StreamFrame header_;
    Bytes bytes_;
    std::unique_ptr<ResponseSource> source_;  // instead
    size_t size_ = 0;
    size_t sent_ = 0;
    std::vector<Turn> others_;  // short messages that go with it, itself one
  };

  // `header` is the first frame's, with `call`; message_bytes is filled in where it is needed.
  void Add(v1::StreamFrame header, Bytes message);
  void Add(v1::StreamFrame header, std::unique_ptr<ResponseSource> message);

  // The message whose turn it is, and with `batches` those that can go along. Not on an empty queue, nor
  // while another is out.
  Turn Take(bool batches);
  // When the frame is made. What is left of a message that is finished, or was dropped meanwhile, stays with
  // the caller, to be destroyed under no lock.
  void PutBack(Turn* turn);
  // The wire form of what is next.
  Bytes Next(bool batches);

  bool empty() const { return messages_.empty(); }
  // What the messages take up: less what went out in frames or is not made yet, plus a little for each.
  size_t bytes() const { return bytes_; }

  // Takes the call's messages out. The other side knows of a message of which a part was sent.
  enum class Dropped { kNothing, kUnsent, kPartlySent };
  // What was taken out is added to `taken`, to be destroyed under no lock, or else destroyed here.
  Dropped Drop(uint64_t call, std::deque<Turn>* taken = nullptr);

  // Returns what there was, to be destroyed under no lock.
  std::deque<Turn> Clear();

 private:
  void Add(Turn message);
  Turn Pop();

  std::deque<Turn> messages_;
  size_t bytes_ = 0;
  uint64_t out_ = 0;   // call of the message that is out, 0: none, or it was dropped
  bool said_ = false;  // that we take batches
};

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_WIRE_FRAME_QUEUE_H_
