#ifndef TANDEM_PS_SERVER_REQUEST_WIRE_H_
#define TANDEM_PS_SERVER_REQUEST_WIRE_H_

// From a Pull's or Push's bytes to arrays that are safe to use: everything a peer can get wrong is found
// here, before anything changes. What has been parsed is trusted by the rest of the server.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/buffer_pool.h"
#include "base/bytes.h"
#include "ps/server/table/server_table.h"
#include "ps/shard_map.h"
#include "tandem/v1/parameter_server.pb.h"

namespace tandem::ps {

// Steps and versions are counters that stay below this, so that adding to one cannot overflow.
inline constexpr uint64_t kMaxStep = uint64_t{1} << 62;
// Gradients of this magnitude come from a model that has diverged, and a few of them would leave infinities
// in rows or optimizer state: they are refused as those that are infinite already.
inline constexpr float kMaxGradient = 0x1p60f;
// What a push or slice may multiply learning rates by.
inline constexpr float kMaxRateFactor = 0x1p20f;

// Rows that a pull may say it has needed no answer for: so many of them do not make a counter overflow.
inline constexpr uint64_t kMaxUnaskedRows = uint64_t{1} << 32;

// Of the bits that a conditional pull's answer has for `ids` ids.
inline uint64_t BitmapBytes(uint64_t ids) { return (ids + 7) / 8; }

// What the requests are checked against. All members outlive the call.
struct WireContext {
  const ShardMap& shard_map;
  uint32_t server;  // index of this one
  BufferPool& buffers;
  size_t max_message_bytes;
  // The table, or NotFound naming it and those there are.
  std::function<absl::StatusOr<std::shared_ptr<ServerTable>>(absl::string_view name)> find;
};

// Ids and offsets lie in `copies`: they are checked, and used as indexes, and the payload may be memory that
// the client can still write to. Gradients do so when they came encoded; those that came as f32 lie in the
// payload where it is aligned and stays alive, so that a client that writes to them after they were checked
// may put numbers that are not finite into rows it could have pushed to anyway; it can break no server.
struct ParsedSlice {
  std::shared_ptr<ServerTable> table;
  v1::Pooling pooling = v1::NONE;
  v1::ValueFormat values = v1::VALUES_F32;  // pulls: of the answer; pushes: in which the gradients came
  absl::Span<const uint64_t> ids;
  absl::Span<const uint32_t> offsets;  // with pooling: one more than there are bags
  absl::Span<const float> gradients;   // pushes: [ids x dim], or [bags x dim] with pooling
  uint64_t pulled_version = 0;         // pushes
  PushPlace place;                     // pushes, GBA
  float learning_rate_factor = 1.0f;   // pushes: of this slice's ids, beside the request's
  // Pulls that want only rows newer than the caller's copies, which are of these versions (0: none) and
  // generation.
  bool conditional = false;
  absl::Span<const uint32_t> versions;  // [ids]
  uint64_t max_age = 0;
  uint64_t generation = 0;
  uint64_t unasked_rows = 0;  // of the caller's copies, that needed no asking
  uint64_t wire_bytes = 0;    // of the payload
  uint64_t rows() const { return pooling == v1::NONE ? ids.size() : offsets.size() - 1; }
};

struct ParsedRequest {
  uint32_t worker = 0;
  uint64_t step = 0;
  bool read_only = false;             // pulls
  uint64_t epoch = 0;                 // pushes
  uint64_t sequence = 0;              // pushes
  bool held_back = false;             // pushes
  float learning_rate_factor = 1.0f;  // pushes
  std::vector<ParsedSlice> slices;
  uint64_t response_bytes = 0;  // pulls: of the rows, as they are sent; at most
  Bytes payload;
  std::vector<std::shared_ptr<char>> copies;
  uint64_t memory_bytes = 0;  // held by payload and copies
};

// InvalidArgument, NotFound (table), FailedPrecondition (an id of another server; names it),
// ResourceExhausted (the answer would not fit a message). Messages name worker, table and what was expected.
absl::StatusOr<ParsedRequest> ParsePull(const Bytes& wire, const WireContext& context);
// The same; gradients that are NaN, Inf or beyond kMaxGradient once decoded are InvalidArgument and counted
// as a refused push of their table.
absl::StatusOr<ParsedRequest> ParsePush(const Bytes& wire, const WireContext& context);

}  // namespace tandem::ps

#endif  // TANDEM_PS_SERVER_REQUEST_WIRE_H_
