// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_WIRE_BATCH_H_
#define TANDEM_RPC_WIRE_BATCH_H_

// Packs several short frames into one message of the stream (StreamFrame.batch), because sending a message
// costs more than such a frame itself. Like frame.h, this is independent of the transport, and nothing is
// thread-safe.

#include <cstddef>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "rpc/wire/frame.h"
#include "tandem/v1/stream.pb.h"

namespace tandem::rpc {

// A batch with more frames is refused.
inline constexpr size_t kMaxBatchFrames = 256;
// A batch with more bytes is refused.
inline constexpr size_t kMaxBatchBytes = size_t{64} << 10;
// A sender stops adding frames at this size.
inline constexpr size_t kUsualBatchBytes = size_t{16} << 10;
// A longer message is sent by itself.
inline constexpr size_t kMaxBatchedMessage = size_t{2} << 10;

// Writes several frames in their wire form.
class BatchWriter {
 public:
  // `bytes` is the approximate size of all frames.
  explicit BatchWriter(size_t bytes) { wire_.reserve(bytes); }
  // Appends one frame.
  void Add(const v1::StreamFrame& header, const Bytes& payload);
  // Returns the number of bytes written so far.
  size_t size() const { return wire_.size(); }
  // Returns the batch; the writer must not be used afterwards.
  Bytes Take() { return Bytes(std::move(wire_)); }

 private:
  std::string wire_;
};

using Frames = absl::InlinedVector<Frame, 1>;

// Reads a message of the stream: one frame, or a batch. InvalidArgument, which says what is wrong, unless
// ParseFrame accepts every frame. Payloads of a batch are copied, so that keeping one does not keep the
// others in memory. A pure function that accepts arbitrary bytes.
absl::StatusOr<Frames> ParseFrames(const Bytes& wire);

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_WIRE_BATCH_H_
