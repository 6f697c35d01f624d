#ifndef TANDEM_RPC_WIRE_BATCH_H_
#define TANDEM_RPC_WIRE_BATCH_H_

// Several short frames in one message of the stream (StreamFrame.batch): what carries messages costs more by
// the message than such a frame costs altogether. As frame.h: knows nothing of what carries them, and nothing
// is thread-safe.

#include <cstddef>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "rpc/wire/frame.h"
#include "tandem/v1/stream.pb.h"

namespace tandem::rpc {

inline constexpr size_t kMaxBatchFrames = 256;                 // a batch of more is refused
inline constexpr size_t kMaxBatchBytes = size_t{64} << 10;     // likewise
inline constexpr size_t kUsualBatchBytes = size_t{16} << 10;   // a sender stops there
inline constexpr size_t kMaxBatchedMessage = size_t{2} << 10;  // a longer message is sent by itself

// The wire form of several frames.
class BatchWriter {
 public:
  // `bytes` is what all frames take up, about.
  explicit BatchWriter(size_t bytes) { wire_.reserve(bytes); }
  void Add(const v1::StreamFrame& header, const Bytes& payload);
  size_t size() const { return wire_.size(); }
  Bytes Take() { return Bytes(std::move(wire_)); }

 private:
  std::string wire_;
};

using Frames = absl::InlinedVector<Frame, 1>;

// Reads a message of the stream: one frame, or a batch. All of its frames are as ParseFrame checks them, or
// it is an InvalidArgument that says what is wrong. Payloads of a batch are copied, so that one which is kept
// does not keep them all. A pure function: any bytes may be given to it.
absl::StatusOr<Frames> ParseFrames(const Bytes& wire);

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_WIRE_BATCH_H_
