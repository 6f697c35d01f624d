// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_CLIENT_CHUNK_DECODER_H_
#define TANDEM_PS_CLIENT_CHUNK_DECODER_H_

// Decodes the rows of a pull's response into the caller's arrays while the response arrives.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "rpc/wire/response_source.h"
#include "tandem/v1/parameter_server.pb.h"

namespace tandem::ps {

namespace v1 = ::tandem::v1;

// The destination of the rows of one slice of a response. A slice has the rows of one part of the pull
// (PullPart).
struct RowDestination {
  v1::ValueFormat values = v1::VALUES_F32;  // the format of the rows in the response
  // [rows]: row i of the slice, `dim` floats, is written to floats + positions[i] * dim. Null: to floats +
  // i * dim.
  const uint32_t* positions = nullptr;
  size_t rows = 0;
  size_t dim = 0;
  float* floats = nullptr;
};

// Decodes the response of one server to one pull. If the call is retried, several responses may arrive; the
// rows of a later one replace those of an earlier one. Not thread-safe: OnChunk runs on any thread, one call
// at a time (rpc::ResponseSink), and Finish after the last OnChunk.
class ChunkDecoder : public rpc::ResponseSink {
 public:
  // Checks a response that is decoded as it arrives, before any of its rows is written. Must return an error
  // unless `payload_bytes`, the size of the response without its header, is that of the rows of all slices:
  // the decoder relies on it. Runs in OnChunk, once per response.
  using Check = absl::AnyInvocable<absl::Status(const v1::PullResponse& header, size_t payload_bytes)>;

  // `slices` are those of the response, in order. Their arrays must stay valid until Finish, or until the
  // RPC's `done` runs with an error.
  ChunkDecoder(std::vector<RowDestination> slices, Check check)
      : slices_(std::move(slices)), check_(std::move(check)) {}

  void OnChunk(uint64_t offset, uint64_t total, Bytes chunk) override;

  // Ends a successful RPC; `rest` is the response that its `done` received, empty if all bytes came in
  // chunks. Returns nullopt if all rows are written. Returns the response if it was not decoded; the caller
  // must then check and decode it. Returns the error of `check` if there was one; the rows' values are then
  // undefined.
  absl::StatusOr<std::optional<Bytes>> Finish(Bytes rest);

 private:
  // Starts a response with its first chunk.
  void Begin(uint64_t total, Bytes chunk);
  // Decodes the next rows of the response.
  void Decode(const Bytes& bytes);
  // Decodes `count` rows of slice `slice_` from `in`.
  void Put(BytesReader* in, size_t count);

  const std::vector<RowDestination> slices_;
  Check check_;
  uint64_t bytes_left_ = 1;    // bytes of the response that have not arrived
  bool in_order_ = false;      // the response is decoded as it arrives: its first chunk has the whole header
  absl::Status check_status_;  // the error of `check`
  Bytes buffered_;             // the chunks that arrived of a response that is not decoded as it arrives
  size_t slice_ = 0;           // the slice of the next row
  size_t row_ = 0;             // the next row in it
  std::string partial_row_;    // the beginning of a row that continues in the next chunk
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_CLIENT_CHUNK_DECODER_H_
