// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_CLIENT_CHUNK_DECODER_H_
#define TANDEM_PS_CLIENT_CHUNK_DECODER_H_

// Decodes the rows of a pull's response to their places while the response arrives.

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

// The destination of the rows of one slice of a response.
struct RowDestination {
  v1::ValueFormat values = v1::VALUES_F32;
  // [rows]: row i goes to floats + positions[i] * dim. Null: it goes to floats + i * dim.
  const uint32_t* positions = nullptr;
  size_t rows = 0;
  size_t dim = 0;
  float* floats = nullptr;
};

// Decodes the responses of one server to one pull; a repeated call may bring several. Chunks must arrive one
// after the other, not concurrently.
class ChunkDecoder : public rpc::ResponseSink {
 public:
  // Returns an error if a response with this header is wrong. Called before any row is written.
  using Check = absl::AnyInvocable<absl::Status(const v1::PullResponse& header, size_t payload_bytes)>;

  // `slices` are those of the response, in order. Their arrays must outlive the call.
  ChunkDecoder(std::vector<RowDestination> slices, Check check)
      : slices_(std::move(slices)), check_(std::move(check)) {}

  void OnChunk(uint64_t offset, uint64_t total, Bytes chunk) override;

  // Ends a successful call; `rest` is the response that the call returned. Returns nullopt if all rows are in
  // place, else the response, which the caller must then decode. Returns the error of `check` if there was
  // one.
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
  bool in_order_ = false;      // whether the response can be decoded as it arrives
  absl::Status check_status_;  // the error of `check`
  Bytes buffered_;             // what has arrived of a response that cannot
  size_t slice_ = 0;           // the slice of the next row
  size_t row_ = 0;             // the next row in it
  std::string partial_row_;    // the beginning of a row that continues in the next chunk
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_CLIENT_CHUNK_DECODER_H_
