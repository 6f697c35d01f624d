// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_SERVER_REQUEST_PARSE_H_
#define TANDEM_PS_SERVER_REQUEST_PARSE_H_

// The first stage of a pull or push: turns the bytes of a request into arrays that are safe to index. Knows
// the wire format but no table. The next stage, request/bind.h, checks the result against the tables.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/buffer_pool.h"
#include "base/bytes.h"
#include "ps/server/table/update_position.h"
#include "tandem/v1/parameter_server.pb.h"

namespace tandem::ps {

namespace v1 = ::tandem::v1;

// Steps and versions are counters below this limit, so that adding to one cannot overflow.
inline constexpr uint64_t kMaxStep = uint64_t{1} << 62;
// Largest factor by which a push or a slice may multiply learning rates.
inline constexpr float kMaxRateFactor = 0x1p20f;
// Largest number of locally served rows that a pull may report. Keeps the counter from overflowing.
inline constexpr uint64_t kMaxLocallyServedRows = uint64_t{1} << 32;

// Largest number of slices of a request, and of bytes of its header, which is the message without the
// payload. Both are checked before memory is allocated for the slices.
inline constexpr int kMaxSlices = 1024;
inline constexpr size_t kMaxHeaderBytes = size_t{1} << 20;

// Names a slice in error messages.
struct SliceLabel {
  uint32_t worker;
  absl::string_view table;
  std::string Text() const;  // "worker 1: table 'user'"
};

// The part of a request for one table.
//
// `ids` and `offsets` lie in RequestHeader::copies: they are checked and then used as indexes, and the client
// may still be able to write to the payload. Gradients that came encoded also lie there. Gradients that came
// as f32 stay in the payload if it is aligned and owned. A client that overwrites them after the check can
// put non-finite numbers into rows that it may push to anyway; it cannot harm the server.
struct ParsedSlice {
  std::string table_name;
  v1::Pooling pooling = v1::NONE;
  // Pulls: the format of the response's rows. Pushes: the format in which the gradients came.
  v1::ValueFormat values = v1::VALUES_F32;
  absl::Span<const uint64_t> ids;
  absl::Span<const uint32_t> offsets;  // with pooling: [bags + 1]

  // Pushes only.
  uint32_t dim = 0;                     // of the gradients, as the client says; at least 1
  absl::Span<const float> gradients;    // [ids x dim], or [bags x dim] with pooling
  float largest_gradient = 0;           // largest magnitude in `gradients`, or NaN
  absl::string_view encoded_gradients;  // as they came; empty if f32. Valid until the call is finished
  uint64_t pulled_version = 0;
  UpdatePosition position;             // GBA tables
  float learning_rate_factor = 1.0f;   // of this slice's ids, multiplied by the request's
  std::vector<uint32_t> segment_ends;  // v1::PushSlice.segment_ends
  // [ids], each at least 1: how often the id occurred; empty: once. In RequestHeader::copies.
  absl::Span<const uint32_t> occurrences;

  // Pulls only. A conditional pull wants only the rows that are newer than the caller's copies.
  bool conditional = false;
  absl::Span<const uint32_t> versions;  // [ids]: of the caller's copies; 0: no copy
  uint64_t max_age = 0;                 // updates
  uint64_t generation = 0;              // of the caller's copies
  uint64_t locally_served_rows = 0;     // rows that the caller's copies served without a request

  uint64_t wire_bytes = 0;  // of the payload
  uint64_t rows() const { return pooling == v1::NONE ? ids.size() : offsets.size() - 1; }
};

// The fields of a request that are not part of a slice, and the memory in which the slices' arrays lie.
struct RequestHeader {
  uint32_t worker = 0;
  uint64_t step = 0;
  bool read_only = false;  // pulls
  absl::Duration max_lag;  // read-only pulls: v1::PullRequest.max_lag_us

  // Pushes only.
  uint64_t epoch = 0;
  uint64_t sequence = 0;
  bool deferred_gradients = false;  // v1::PushRequest.held_back
  float learning_rate_factor = 1.0f;
  float batch_share = 1.0f;

  Bytes payload;
  std::vector<std::shared_ptr<char>> copies;
  uint64_t memory_bytes = 0;  // held by payload and copies
};

struct ParsedRequest : RequestHeader {
  std::vector<ParsedSlice> slices;
};

struct ParseOptions {
  BufferPool& buffers;       // gives the memory of copied and decoded arrays
  size_t max_message_bytes;  // limits the memory to which packed ids and pooled gradients expand
};

// Parse the bytes of a Pull or Push request. The result shares the payload's memory. InvalidArgument: the
// bytes are not a well-formed request. ResourceExhausted: the request expands to more memory than a message
// may have. Messages name the worker, the table and what was expected.
absl::StatusOr<ParsedRequest> ParsePull(const Bytes& wire, const ParseOptions& options);
absl::StatusOr<ParsedRequest> ParsePush(const Bytes& wire, const ParseOptions& options);

}  // namespace tandem::ps

#endif  // TANDEM_PS_SERVER_REQUEST_PARSE_H_
