#ifndef TANDEM_RPC_STREAM_FRAME_H_
#define TANDEM_RPC_STREAM_FRAME_H_

// Calls as frames of one stream (proto/tandem/v1/stream.proto). Nothing here knows what carries the frames,
// and nothing is thread-safe.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "tandem/v1/stream.pb.h"

namespace tandem::rpc {

inline constexpr char kStreamMethod[] = "/tandem.v1.Data/Stream";
inline constexpr size_t kFramePayload = size_t{1} << 20;       // longer messages are cut into pieces of this
inline constexpr size_t kMaxFramePayload = 2 * kFramePayload;  // a frame with more is refused
inline constexpr size_t kMaxFrameBytes = kMaxFramePayload + (size_t{128} << 10);  // with its header
inline constexpr size_t kMaxErrorBytes = size_t{64} << 10;                        // of StreamFrame.error

// A frame taken apart. `payload` shares the memory it came in; `header` is without it.
struct Frame {
  v1::StreamFrame header;
  Bytes payload;
};

// Reads one frame and checks all that can be checked without knowing the frames before it. InvalidArgument,
// saying what is wrong, for anything else. A pure function: any bytes may be given to it.
absl::StatusOr<Frame> ParseFrame(const Bytes& wire);

// Puts messages together whose frames come interleaved.
class MessageAssembler {
 public:
  struct Message {
    v1::StreamFrame header;  // the first frame's
    Bytes bytes;
  };

  // Takes the first frame of a message whose call has none under way. Nothing: more frames are to come.
  // InvalidArgument when the frame holds more than the message is to have.
  absl::StatusOr<std::optional<Message>> Begin(Frame frame);
  // Takes a further frame of a call that has one under way. As Begin; also when the frame is empty.
  absl::StatusOr<std::optional<Message>> Continue(Frame frame);

  bool Has(uint64_t call) const { return partial_.contains(call); }
  // Forgets what came of the call's message, if anything did.
  void Drop(uint64_t call);
  // Of all unfinished messages, counted as if they were complete.
  size_t bytes() const { return bytes_; }

 private:
  absl::flat_hash_map<uint64_t, Message> partial_;
  size_t bytes_ = 0;
};

// Messages that wait to be sent, cut into frames on the way out. Messages take turns, a frame each.
class FrameQueue {
 public:
  // `header` is the first frame's, with `call`; this fills in message_bytes where it is needed.
  void Add(v1::StreamFrame header, Bytes message);
  // The wire form of the next frame, over the message's memory. Not on an empty queue.
  Bytes Next();

  bool empty() const { return messages_.empty(); }
  // Of the messages, less what went out in frames, plus a little for each.
  size_t bytes() const { return bytes_; }

  // Takes the call's messages out. The other side knows of a message of which a part was sent.
  enum class Dropped { kNothing, kUnsent, kPartlySent };
  Dropped Drop(uint64_t call);

  void Clear();

 private:
  struct Message {
    v1::StreamFrame header;
    Bytes bytes;
    size_t sent = 0;
  };

  std::deque<Message> messages_;
  size_t bytes_ = 0;
};

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_STREAM_FRAME_H_
