// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_WIRE_FRAME_H_
#define TANDEM_RPC_WIRE_FRAME_H_

// Splits calls into frames of one stream (proto/tandem/v1/stream.proto). Independent of the transport that
// carries the frames. Nothing here is thread-safe.

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
// Longer messages are split into chunks of this size. Half of it costs more processor time per byte; twice as
// much saves nothing.
inline constexpr size_t kFramePayload = size_t{512} << 10;
// A frame with a larger payload is refused.
inline constexpr size_t kMaxFramePayload = size_t{2} << 20;
// Largest frame, its header included.
inline constexpr size_t kMaxFrameBytes = kMaxFramePayload + (size_t{128} << 10);
// Largest request or response of a gRPC call of its own, outside a stream. gRPC has the whole message in
// memory before the server can look at it.
inline constexpr size_t kMaxUnaryBytes = size_t{4} << 20;
// Largest StreamFrame.error.
inline constexpr size_t kMaxErrorBytes = size_t{64} << 10;

// A parsed frame. `payload` shares the memory of the wire form; `header` does not contain it.
struct Frame {
  v1::StreamFrame header;
  Bytes payload;
};

// Parses one frame and checks everything that does not depend on earlier frames. InvalidArgument, which says
// what is wrong, for anything else. A pure function that accepts arbitrary bytes.
absl::StatusOr<Frame> ParseFrame(const Bytes& wire);

// Reassembles messages whose frames arrive interleaved.
class MessageAssembler {
 public:
  // A complete message.
  struct Message {
    // The header of its first frame.
    v1::StreamFrame header;
    Bytes bytes;
  };
  // Receives the bytes of one message as they arrive, in order, starting at offset 0.
  using ChunkConsumer = absl::AnyInvocable<void(uint64_t offset, uint64_t total, Bytes chunk)>;

  // If `pool` is set, each message of several frames is copied into one buffer of the pool as its frames
  // arrive. The copy reads the frame while it is still in a near cache, and the receive memory can be used
  // again. Without a pool, the message shares the receive memory.
  explicit MessageAssembler(BufferPool* pool = nullptr) : pool_(pool) {}

  // Adds the first frame of a message. Its call must have no unfinished message. Returns the message if it is
  // complete, or nullopt if more frames follow. InvalidArgument if the frame has more bytes than the message
  // should have. If more frames follow and `taker` is set, `taker` gets all bytes and the message has none.
  absl::StatusOr<std::optional<Message>> Begin(Frame frame, ChunkConsumer taker = nullptr);
  // Adds a further frame. Its call must have an unfinished message, otherwise InvalidArgument. Returns like
  // Begin; an empty frame is InvalidArgument too.
  absl::StatusOr<std::optional<Message>> Continue(Frame frame);

  // Returns true if the call has an unfinished message.
  bool Has(uint64_t call) const { return partial_.contains(call); }
  // Discards the call's unfinished message, if there is one. Returns how much of it had arrived, in bytes.
  uint64_t Drop(uint64_t call);
  // Returns the total size of all unfinished messages, each counted with its full size.
  size_t bytes() const { return bytes_; }

 private:
  struct Partial {
    Message message;
    uint64_t received = 0;
    ChunkConsumer taker;
    std::shared_ptr<char> memory;  // of the pool, or nullptr
    char* to = nullptr;            // the place of the message's first byte in `memory`
  };
  static void Add(Partial* partial, Bytes payload);

  BufferPool* const pool_;
  absl::flat_hash_map<uint64_t, Partial> partial_;
  size_t bytes_ = 0;
};

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_WIRE_FRAME_H_
