// SPDX-License-Identifier: Apache-2.0
#include "ps/server/request/bind.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "ps/wire/value_codec.h"
#include "ps/wire/version_codec.h"

namespace tandem::ps {
namespace {

absl::Status CheckIds(const BoundSlice& slice, const TableRegistry& tables, uint32_t worker) {
  const ShardMap& shard_map = tables.shard_map();
  if (shard_map.num_servers() > 1) {
    for (uint64_t id : slice.ids) {
      const uint32_t owner = shard_map.OwnerOf(id);
      if (owner != tables.server()) {
        return absl::FailedPreconditionError(absl::StrCat(
            SliceLabel{worker, slice.table_name}.Text(), ": id ", id, " belongs to server ", owner,
            ", this is server ", tables.server(), ": the client's shard map is out of date"));
      }
    }
  }
  const ServerTable& table = *slice.table;
  if (table.dense()) {
    const uint64_t rows = (table.elements() + table.dim() - 1) / table.dim();
    for (uint64_t id : slice.ids) {
      if (id >= rows) {
        return absl::InvalidArgumentError(absl::StrCat(SliceLabel{worker, slice.table_name}.Text(), ": id ",
                                                       id, " is outside this dense table of ", rows,
                                                       " rows"));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckGradients(const BoundSlice& slice, uint32_t worker) {
  if (slice.largest_gradient < kMaxGradient) return absl::OkStatus();
  slice.table->counters().AddRefusedPush();
  const std::string who = SliceLabel{worker, slice.table_name}.Text();
  const size_t at = std::find_if(slice.gradients.begin(), slice.gradients.end(),
                                 [](float g) { return !(std::abs(g) < kMaxGradient); }) -
                    slice.gradients.begin();
  if (at == static_cast<size_t>(slice.gradients.size())) {  // the client writes to that memory meanwhile
    return absl::InvalidArgumentError(
        absl::StrCat(who, ": gradients changed while they were read; push refused"));
  }
  const float value = slice.gradients[at];
  const uint32_t dim = slice.dim;
  const uint64_t row = at / dim;
  const std::string which =
      slice.pooling == v1::NONE ? absl::StrCat("id ", slice.ids[row]) : absl::StrCat("bag ", row);
  const std::string what = std::isnan(value)   ? "NaN"
                           : std::isinf(value) ? "Inf"
                                               : absl::StrCat(value, ", beyond 2^60");
  std::string how;
  if (slice.values == v1::VALUES_INT8) {
    float scale;
    std::memcpy(&scale, slice.encoded_gradients.data() + row * RowBytes(slice.values, dim), sizeof(scale));
    how = absl::StrCat(" (int8 with scale ", scale, ")");
  }
  return absl::InvalidArgumentError(
      absl::StrCat(who, ": gradient of ", which, " is ", what, how, "; push refused"));
}

// Finds the slice's table, and checks the worker's rank (if `needs_rank`) and the ids.
absl::Status BindSlice(uint32_t worker, bool needs_rank, const TableRegistry& tables, BoundSlice* slice) {
  absl::StatusOr<std::shared_ptr<ServerTable>> table = tables.Find(slice->table_name);
  if (!table.ok()) return Annotate(table.status(), absl::StrCat("worker ", worker));
  slice->table = *std::move(table);
  if (needs_rank) {
    TANDEM_RETURN_IF_ERROR(slice->table->CheckRank(worker, SliceLabel{worker, slice->table_name}.Text()));
  }
  return CheckIds(*slice, tables, worker);
}

// The request without the slices' tables.
BoundRequest Unbound(ParsedRequest request) {
  BoundRequest bound;
  static_cast<RequestHeader&>(bound) = static_cast<RequestHeader&&>(request);
  bound.slices.reserve(request.slices.size());
  for (ParsedSlice& slice : request.slices) bound.slices.push_back({std::move(slice), nullptr});
  return bound;
}

}  // namespace

absl::StatusOr<BoundRequest> BindPull(ParsedRequest request, const TableRegistry& tables,
                                      size_t max_message_bytes) {
  BoundRequest bound = Unbound(std::move(request));
  for (BoundSlice& slice : bound.slices) {
    TANDEM_RETURN_IF_ERROR(BindSlice(bound.worker, /*needs_rank=*/!bound.read_only, tables, &slice));
    const uint32_t dim = slice.table->dim();
    const uint64_t bitmap_bytes = slice.conditional ? BitmapBytes(slice.ids.size()) : 0;
    // No overflow: counts are at most the payload's bytes, dim has 32 bits, and the sum is checked for each
    // slice.
    const unsigned __int128 bytes =
        static_cast<unsigned __int128>(slice.rows()) * RowBytes(slice.values, dim) + bitmap_bytes +
        bound.response_bytes;
    // Rows that are pooled are first gathered as floats.
    const size_t float_bytes = slice.pooling == v1::NONE ? 0 : dim * sizeof(float);
    const unsigned __int128 unpooled = static_cast<unsigned __int128>(slice.ids.size()) * float_bytes;
    if (std::max(bytes, unpooled) > max_message_bytes) {
      return absl::ResourceExhaustedError(
          absl::StrCat(SliceLabel{bound.worker, slice.table_name}.Text(),
                       ": the rows asked for need more than the message limit of ", max_message_bytes,
                       " bytes: pull fewer at a time"));
    }
    bound.response_bytes = static_cast<uint64_t>(bytes);
  }
  return bound;
}

absl::StatusOr<BoundRequest> BindPush(ParsedRequest request, const TableRegistry& tables) {
  BoundRequest bound = Unbound(std::move(request));
  for (BoundSlice& slice : bound.slices) {
    TANDEM_RETURN_IF_ERROR(BindSlice(bound.worker, /*needs_rank=*/true, tables, &slice));
    if (slice.dim != slice.table->dim()) {
      return absl::InvalidArgumentError(absl::StrCat(SliceLabel{bound.worker, slice.table_name}.Text(),
                                                     ": gradients of dim ", slice.dim, ", but its dim is ",
                                                     slice.table->dim()));
    }
  }
  // Only a push that is otherwise right is counted as refused for its gradients.
  for (const BoundSlice& slice : bound.slices) TANDEM_RETURN_IF_ERROR(CheckGradients(slice, bound.worker));
  return bound;
}

}  // namespace tandem::ps
