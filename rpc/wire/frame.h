#ifndef TANDEM_RPC_WIRE_FRAME_H_
#define TANDEM_RPC_WIRE_FRAME_H_

// Calls as frames of one stream (proto/tandem/v1/stream.proto). Nothing here knows what carries the frames,
// and nothing is thread-safe.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "base/buffer_pool.h"
#include "base/bytes.h"
#include "tandem/v1/stream.pb.h"

namespace tandem::rpc {

inline constexpr char kStreamMethod[] = "/tandem.v1.Data/Stream";
// Longer messages are cut into pieces of this. Half as much costs more processor time a byte, twice as much
// no less.
inline constexpr size_t kFramePayload = size_t{512} << 10;
inline constexpr size_t kMaxFramePayload = size_t{2} << 20;  // a frame with more is refused
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
  // Takes the bytes of one message as they come, in order, from offset 0 on.
  using Taker = absl::AnyInvocable<void(uint64_t offset, uint64_t total, Bytes chunk)>;

  // With a `pool`, a message of several frames is copied to one piece of its memory, frame by frame, while
  // each is still in a near cache and so that the memory it came in can be used again; else it shares what it
  // came in.
  explicit MessageAssembler(BufferPool* pool = nullptr) : pool_(pool) {}

  // Takes the first frame of a message whose call has none under way. Nothing: more frames are to come.
  // InvalidArgument when the frame holds more than the message is to have. If there are to be more frames,
  // `taker` gets all bytes, and the message none.
  absl::StatusOr<std::optional<Message>> Begin(Frame frame, Taker taker = nullptr);
  // Takes a further frame of a call that has one under way. As Begin; also when the frame is empty.
  absl::StatusOr<std::optional<Message>> Continue(Frame frame);

  bool Has(uint64_t call) const { return partial_.contains(call); }
  // Forgets what came of the call's message, if anything did.
  void Drop(uint64_t call);
  // Of all unfinished messages, counted as if they were complete.
  size_t bytes() const { return bytes_; }

 private:
  struct Partial {
    Message message;
    uint64_t received = 0;
    Taker taker;
    std::shared_ptr<char> memory;  // of the pool
    char* to = nullptr;            // where its first byte goes
  };
  static void Add(Partial* partial, Bytes payload);

  BufferPool* const pool_;
  absl::flat_hash_map<uint64_t, Partial> partial_;
  size_t bytes_ = 0;
};

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_WIRE_FRAME_H_
