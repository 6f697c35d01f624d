// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_REPLAY_CLIENT_SAMPLE_RESPONSE_H_
#define TANDEM_REPLAY_CLIENT_SAMPLE_RESPONSE_H_

// Reads the responses of a replay server to samples.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "base/buffer_pool.h"
#include "base/bytes.h"
#include "replay/table/batch.h"
#include "rpc/wire/response_source.h"
#include "tandem/v1/replay.pb.h"

namespace tandem::replay {

// The memory of batches, shared by the calls of a client. Batches may outlive the client. Thread-safe.
struct BatchMemory {
  explicit BatchMemory(size_t max_in_place_bytes) : max_in_place(max_in_place_bytes) {}

  const size_t max_in_place;        // RemoteReplayOptions::max_in_place_bytes
  std::atomic<size_t> in_place{0};  // bytes of batches that are read in place
  BufferPool buffers;               // for the others
};

// The response to one sample call. If the transport delivers it in chunks, their values are copied to the
// batch's memory while the cache still has them. Not thread-safe: OnChunk runs on any thread, one call at a
// time (rpc::ResponseSink), and Finish after the last OnChunk.
class SampleResponse : public rpc::ResponseSink {
 public:
  explicit SampleResponse(std::shared_ptr<BatchMemory> memory) : memory_(std::move(memory)) {}

  void OnChunk(uint64_t offset, uint64_t total, Bytes chunk) override;
  // Returns the batch of a call that has succeeded. `rest` is what its `done` received: the whole response,
  // or nothing if it came in chunks. Internal: the response is malformed.
  absl::StatusOr<Batch> Finish(const Bytes& rest);

 private:
  const std::shared_ptr<BatchMemory> memory_;
  bool copies_ = false;  // the first chunk had the whole header, and the values are copied as they arrive
  v1::ReplaySampleResponse header_;
  std::shared_ptr<char> values_;
  size_t size_ = 0, copied_ = 0;  // of the values
  Bytes chunks_;                  // of a response whose values are not copied as they arrive
};

}  // namespace tandem::replay

#endif  // TANDEM_REPLAY_CLIENT_SAMPLE_RESPONSE_H_
