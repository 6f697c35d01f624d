// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_CLIENT_PARTS_H_
#define TANDEM_PS_CLIENT_PARTS_H_

// The arguments of pulls and pushes (ps/client/client.h), one part per table, and the types of their
// callbacks.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/numeric/tensor.h"
#include "tandem/v1/parameter_server.pb.h"

namespace tandem::ps {

namespace v1 = ::tandem::v1;

// The rows of one table that a pull requests. `ids` and `offsets` must stay alive and unchanged until the
// pull has ended. Shapes:
//
// - without pooling: rows is [ids.size() x dim]
// - with pooling: offsets has bags + 1 entries, bag b is ids[offsets[b], offsets[b+1]), and rows is [bags x
//   dim]; an empty bag gives zeros
//
// Rows on a GPU: `device` is Device::Cuda(n), `rows` points to memory of GPU n (cudaMalloc, or managed
// memory), and `stream` is a stream of it (cudaStream_t), which must exist until the pull has ended. `ids`
// and `offsets` are in host memory in any case. The rows are written after all work that `stream` had when
// PullAsync was called. When the pull has ended, work that is queued on `stream` from then on sees the rows;
// the GPU may still be copying. Without a stream, the rows are on the GPU when the pull has ended; they are
// written after the work of the legacy default stream. cudaStreamPerThread stands for the stream of the
// thread that calls PullAsync; the rows are on the GPU when the pull has ended, as without a stream.
//
// After an error a copy may still be under way. Later work of `stream`, or of the legacy default stream if
// there is none, waits for it, and so does cudaFree. A stream that is being captured into a CUDA graph when
// the pull ends does not wait. The parts of one pull may lie on different devices.
struct PullPart {
  std::string table;
  absl::Span<const uint64_t> ids;
  // Written before the pull ends. Owned by the caller.
  float* rows = nullptr;
  v1::Pooling pooling = v1::NONE;
  absl::Span<const uint32_t> offsets;
  // Without pooling: true if ids may repeat. The client then requests each id once and copies its row to the
  // other positions, unless a sample of the ids has no repeat (Deduper::SampleRepeats). Callers can also
  // remove repeats themselves (ps/dedupe.h). False: an id that repeats is sent as often.
  bool repeats = false;
  Device device;  // the memory of `rows`
  std::optional<void*> stream;
};

// The gradients of one table that a push applies. The shapes are those of PullPart, with gradients for rows.
// The gradients of an id that repeats add up. PushAsync copies `ids`, `gradients` and `offsets` before it
// returns, except gradients that have an `owner`.
//
// Gradients on a GPU: `device`, `gradients` and `stream` as the `rows` of a PullPart. The gradients are read
// after all work that `stream`, or the legacy default stream if there is none, had when PushAsync was called.
// PushAsync blocks until they are in host memory. `owner` is not used.
struct PushPart {
  std::string table;
  absl::Span<const uint64_t> ids;
  const float* gradients = nullptr;
  v1::Pooling pooling = v1::NONE;
  absl::Span<const uint32_t> offsets;
  // The table's entry of the PullVersions of the pull from which the gradients were computed: one version per
  // server.
  absl::Span<const uint64_t> pulled_versions;
  // Multiplies the learning rate for these ids (> 0, at most 2^20). A feature with its own rate is a part of
  // its own.
  float learning_rate_factor = 1.0f;
  // Without pooling: true if ids may repeat. The client then adds up their gradients before sending if that
  // saves bytes. False: the caller guarantees that no id repeats, which saves the search.
  bool repeats = true;
  // Without pooling: [ids.size()], how often each id occurred, at least once, for callers that have removed
  // repeats themselves. Eviction `lfu` counts it (Client::CountsOccurrences); other tables ignore it. Empty:
  // once each. Copied by PushAsync.
  absl::Span<const uint32_t> occurrences;
  // Divides `ids` into segments for which the client counts row staleness (Client::RowStalenessStatistics),
  // for example one for each feature: segment i is ids [segments[i - 1], segments[i]). Ascending; the last is
  // ids.size(). At most 65536 a push. Copied by PushAsync. Empty: none. Ignored if the table's cache defers
  // gradients, since those that are sent are then other ones.
  absl::Span<const uint32_t> segments;
  // Keeps `gradients` alive and unchanged. The transport may then send them from where they lie, without a
  // copy. Held until the last byte is sent, which may be after the end of the push if its timeout passes.
  std::shared_ptr<const void> owner = nullptr;
  Device device;  // the memory of `gradients`
  std::optional<void*> stream;
};

// The arguments of a push beside its parts.
struct PushOptions {
  // Multiplies the tables' learning rates for this push (> 0, at most 2^20).
  float learning_rate_factor = 1.0f;
  // The share of a global batch that this push carries, in (0, 1]: 1/N for each of N workers whose gradients
  // are scaled by the global batch. Updates multiply the regularization of rows (l2, weight_decay; not the l2
  // of ftrl) by it. Without it, N asynchronous workers regularize N times as much as synchronous ones. SYNC
  // updates, which merge the pushes of all workers, regularize in full.
  float batch_share = 1.0f;
};

// [part][server]: the version of the table when its rows were read.
using PullVersions = std::vector<std::vector<uint64_t>>;

using PullDone = absl::AnyInvocable<void(absl::StatusOr<PullVersions>) &&>;
using PushDone = absl::AnyInvocable<void(absl::Status) &&>;

}  // namespace tandem::ps

#endif  // TANDEM_PS_CLIENT_PARTS_H_
