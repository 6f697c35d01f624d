// SPDX-License-Identifier: Apache-2.0
#include "ps/server/request/response_writer.h"

#include <algorithm>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/copy_choice.h"
#include "base/status.h"
#include "base/ticks.h"
#include "ps/server/request/pooling.h"
#include "ps/storage/table_storage.h"
#include "ps/trace_kinds.h"
#include "ps/wire/value_codec.h"
#include "ps/wire/version_codec.h"
#include "rpc/wire/bulk_codec.h"
#include "rpc/wire/response_source.h"

namespace tandem::ps {
namespace {

bool AlignedForFloats(const char* at) { return reinterpret_cast<uintptr_t>(at) % alignof(float) == 0; }

// Returns whether rows stored as `type` can be sent as `values` bit by bit: converting them through floats
// would give the same bits.
bool IsOfType(v1::ValueFormat values, DType type) {
  return (values == v1::VALUES_F16 && type == DType::kF16) ||
         (values == v1::VALUES_BF16 && type == DType::kBF16);
}

// Returns how many rows to gather at a time: enough to keep a gather's pipeline busy, few enough to stay in
// the second-level cache.
size_t BlockRows(size_t dim) {
  constexpr size_t kBlockBytes = size_t{128} << 10;
  return std::clamp<size_t>(kBlockBytes / (dim * sizeof(float)), 64, 1024);
}

absl::Status WriteEncoded(TableStorage& storage, absl::Span<const uint64_t> all, v1::ValueFormat values,
                          size_t dim, bool create, BufferPool& buffers, char* out) {
  const size_t row_bytes = RowBytes(values, dim);
  const size_t block = std::min(BlockRows(dim), all.size());
  const std::shared_ptr<char> memory = buffers.Get(block * dim * sizeof(float));
  auto* const rows = reinterpret_cast<float*>(memory.get());
  for (size_t first = 0; first < all.size(); first += block) {
    const absl::Span<const uint64_t> ids = all.subspan(first, block);
    TANDEM_RETURN_IF_ERROR(storage.Gather(ids, create, rows));
    EncodeRows(values, rows, nullptr, ids.size(), dim, out + first * row_bytes);
  }
  return absl::OkStatus();
}

// Gathers in the way that has been the faster one lately.
absl::Status GatherInPlace(TableStorage& storage, const BoundSlice& slice, bool create, size_t bytes,
                           float* out) {
  CopyChoice& choice = slice.table->gathers();
  const CopyChoice::Way way = choice.Next();
  const int64_t begin = SteadyNanoseconds();
  TANDEM_RETURN_IF_ERROR(way == CopyChoice::kPlain ? storage.Gather(slice.ids, create, out)
                                                   : storage.GatherAround(slice.ids, create, out));
  choice.Note(way, bytes, SteadyNanoseconds() - begin);
  return absl::OkStatus();
}

absl::Status WritePooled(TableStorage& storage, const BoundSlice& slice, bool create, BufferPool& buffers,
                         char* out) {
  const uint32_t dim = slice.table->dim();
  const bool direct = slice.values == v1::VALUES_F32 && AlignedForFloats(out);
  const size_t gathered = slice.ids.size() * dim;
  const std::shared_ptr<char> memory =
      buffers.Get((gathered + (direct ? 0 : slice.rows() * dim)) * sizeof(float));
  auto* const rows = reinterpret_cast<float*>(memory.get());
  float* const pooled = direct ? reinterpret_cast<float*>(out) : rows + gathered;
  TANDEM_RETURN_IF_ERROR(storage.Gather(slice.ids, create, rows));
  PoolRows(rows, slice.offsets, dim, slice.pooling, pooled);
  if (!direct) EncodeRows(slice.values, pooled, nullptr, slice.rows(), dim, out);
  return absl::OkStatus();
}

// Writes the rows of `ids` as `values` to `out`: ids.size() * RowBytes bytes, at any alignment. Errors and
// the effect of `create` are those of TableStorage::Gather.
absl::Status WriteUnpooledRows(TableStorage& storage, absl::Span<const uint64_t> ids, v1::ValueFormat values,
                               uint32_t dim, bool create, BufferPool& buffers, char* out) {
  if (values == v1::VALUES_F32 && AlignedForFloats(out)) {
    return storage.Gather(ids, create, reinterpret_cast<float*>(out));
  }
  if (IsOfType(values, storage.row_type()) && reinterpret_cast<uintptr_t>(out) % sizeof(uint16_t) == 0) {
    return storage.GatherStored(ids, create, out);
  }
  return WriteEncoded(storage, ids, values, dim, create, buffers, out);
}

// Writes the slice's rows to `out`, pooled if the slice asks for that: slice.rows() * RowBytes bytes, at any
// alignment. `in_place`: the client reads `out` itself, from another core.
absl::Status WriteRows(TableStorage& storage, const BoundSlice& slice, bool create, BufferPool& buffers,
                       bool in_place, char* out) {
  if (slice.pooling != v1::NONE) return WritePooled(storage, slice, create, buffers, out);
  const size_t bytes = slice.rows() * RowBytes(slice.values, slice.table->dim());
  if (in_place && bytes >= CopyChoice::kWorthChoosing && slice.values == v1::VALUES_F32 &&
      AlignedForFloats(out)) {
    return GatherInPlace(storage, slice, create, bytes, reinterpret_cast<float*>(out));
  }
  return WriteUnpooledRows(storage, slice.ids, slice.values, slice.table->dim(), create, buffers, out);
}

// Writes the response to a conditional slice: the bitmap, then the rows that are newer than the caller's
// copies. Returns the number of those rows. `out` has capacity for all rows. FailedPrecondition: max_age is
// larger than the table's mode allows.
absl::StatusOr<uint64_t> WriteNewerRows(const ServerTable::View& view, const BoundSlice& slice, bool create,
                                        BufferPool& buffers, char* out) {
  if (view.sync && slice.max_age > 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "table '", slice.table->name(), "' is synchronous, which promises the newest rows: copies up to ",
        slice.max_age, " updates old do not serve (turn the cache off)"));
  }
  const size_t dim = slice.table->dim();
  const size_t row_bytes = RowBytes(slice.values, dim);
  auto* const sent = reinterpret_cast<uint8_t*>(out);
  char* const rows = out + BitmapBytes(slice.ids.size());
  // A multiple of eight: each block's bits begin with a byte.
  const size_t block = BlockRows(dim) / 8 * 8;
  const std::vector<uint32_t> none(
      slice.generation == view.generation ? 0 : std::min(block, slice.ids.size()), 0);
  const std::shared_ptr<char> memory = buffers.Get(std::min(block, slice.ids.size()) * dim * sizeof(float));
  uint64_t written = 0;
  for (size_t first = 0; first < slice.ids.size(); first += block) {
    const absl::Span<const uint64_t> ids = slice.ids.subspan(first, block);
    const uint32_t* const versions = none.empty() ? slice.versions.data() + first : none.data();
    char* const to = rows + written * row_bytes;
    const bool direct = slice.values == v1::VALUES_F32 && AlignedForFloats(to);
    auto* const floats = reinterpret_cast<float*>(direct ? to : memory.get());
    TANDEM_ASSIGN_OR_RETURN(const size_t newer, view.storage->GatherNewer(ids, versions, slice.max_age,
                                                                          create, floats, sent + first / 8));
    if (!direct) EncodeRows(slice.values, floats, nullptr, newer, dim, to);
    written += newer;
  }
  return written;
}

// Adds a slice without num_rows to the response's header, and returns it. `view` must be taken before the
// rows are read: they then hold at least the updates that it counts.
v1::PullSliceResult* AddResult(const BoundSlice& slice, const ServerTable::View& view,
                               v1::PullResponse* header) {
  v1::PullSliceResult* const result = header->add_slices();
  result->set_dim(slice.table->dim());
  result->set_values(slice.values);
  result->set_version(view.version);
  result->set_applied(view.applied);
  result->set_generation(view.generation);
  return result;
}

void SetAnswerer(const PullAnswerer& answerer, v1::PullResponse* header) {
  if (!answerer.follower) return;
  header->set_from_follower(true);
  header->set_lag_us(static_cast<uint64_t>(absl::ToInt64Microseconds(answerer.lag)));
}

// Adds a pull to its tables' statistics. The rows of slice i end at byte ends[i] of the response.
void CountPull(const BoundRequest& request, TableCounters::Clock::time_point arrived,
               absl::Span<const uint64_t> ends) {
  const std::vector<BoundSlice>& slices = request.slices;
  for (size_t i = 0; i < slices.size(); ++i) {
    const auto same = [&](const BoundSlice& other) { return other.table == slices[i].table; };
    // Counted with the first slice of its table.
    if (std::any_of(slices.begin(), slices.begin() + i, same)) continue;
    uint64_t bytes = 0;
    for (size_t j = i; j < slices.size(); ++j) {
      if (same(slices[j])) bytes += ends[j] - (j == 0 ? 0 : ends[j - 1]);
    }
    slices[i].table->counters().AddPull(arrived, bytes);
  }
}

// The response to a pull whose rows are read while it is sent, some hundred KiB at a time. Holds the call, so
// that it counts as unanswered until the end.
class ChunkedPullResponse : public rpc::ResponseSource {
 public:
  // Returns whether the response can be sent in chunks:
  //
  //   - its size is known before rows are read (no pooling, not conditional);
  //   - no read can fail (no table with rows on disk);
  //   - the header and one row fit into the first chunk;
  //   - it needs more than one chunk. A shorter response is written at once, so that short responses are sent
  //     together (rpc/wire/batch.h).
  static bool Serves(const BoundRequest& request);

  // Serves(request) must be true. `buffers` must outlive this object. The rows are those of now, or newer.
  ChunkedPullResponse(BoundRequest request, std::shared_ptr<rpc::ServerCall> call,
                      TableCounters::Clock::time_point arrived, BufferPool* buffers,
                      const PullAnswerer& answerer);

  size_t size() const override { return head_.size() + request_.response_bytes; }
  Bytes Next(size_t limit) override;

 private:
  static constexpr size_t kMaxSliceHead = 64;  // bytes of the head for one slice; it needs about 50 at most
  static constexpr size_t kMaxSlices = kMinChunk / 2 / kMaxSliceHead;

  void Count() const;

  const BoundRequest request_;
  const std::shared_ptr<rpc::ServerCall> call_;
  const TableCounters::Clock::time_point arrived_;
  BufferPool* const buffers_;
  std::vector<std::shared_ptr<TableStorage>> rows_;  // [slices]
  Bytes head_;
  bool begun_ = false;
  size_t slice_ = 0;  // of the next row
  size_t row_ = 0;    // the next row's index in its slice
};

bool ChunkedPullResponse::Serves(const BoundRequest& request) {
  if (request.response_bytes <= kMinChunk || request.slices.size() > kMaxSlices) return false;
  return std::all_of(request.slices.begin(), request.slices.end(), [](const BoundSlice& slice) {
    return slice.pooling == v1::NONE && !slice.conditional && !slice.table->created_config().spill() &&
           RowBytes(slice.values, slice.table->dim()) <= kMinChunk / 2;
  });
}

ChunkedPullResponse::ChunkedPullResponse(BoundRequest request, std::shared_ptr<rpc::ServerCall> call,
                                         TableCounters::Clock::time_point arrived, BufferPool* buffers,
                                         const PullAnswerer& answerer)
    : request_(std::move(request)), call_(std::move(call)), arrived_(arrived), buffers_(buffers) {
  v1::PullResponse header;
  SetAnswerer(answerer, &header);
  rows_.reserve(request_.slices.size());
  for (const BoundSlice& slice : request_.slices) {
    ServerTable::View view = slice.table->Look();
    AddResult(slice, view, &header)->set_num_rows(slice.rows());
    rows_.push_back(std::move(view.storage));
  }
  head_ = rpc::EncodeBulkHead(header, request_.response_bytes);
}

Bytes ChunkedPullResponse::Next(size_t limit) {
  const trace::Span traced(kTraceLookup, static_cast<int64_t>(request_.step), request_.worker);
  Bytes chunk;
  if (!begun_) {
    begun_ = true;
    chunk = head_;
    limit -= std::min(limit, head_.size());
  }
  // The rows get a slice of their own, which begins at a cache line whatever the head's size.
  const std::shared_ptr<char> memory = request_.response_bytes == 0 ? nullptr : buffers_->Get(limit);
  char* out = memory.get();
  for (; slice_ < request_.slices.size(); ++slice_, row_ = 0) {
    const BoundSlice& slice = request_.slices[slice_];
    const uint32_t dim = slice.table->dim();
    const size_t row_bytes = RowBytes(slice.values, dim);
    const size_t fit = (limit - (out - memory.get())) / row_bytes;
    const absl::Span<const uint64_t> ids = slice.ids.subspan(row_, fit);
    if (!ids.empty()) {
      // A table in memory returns no errors.
      TANDEM_CHECK(
          WriteUnpooledRows(*rows_[slice_], ids, slice.values, dim, !request_.read_only, *buffers_, out)
              .ok());
      out += ids.size() * row_bytes;
      row_ += ids.size();
    }
    if (row_ < slice.ids.size()) break;
    if (!request_.read_only) slice.table->counters().AddPulledIds(slice.ids);
  }
  if (slice_ == request_.slices.size()) Count();
  const char* const data = memory.get();
  const size_t size = out - data;
  chunk.Append(Slice(memory, data, size));
  return chunk;
}

void ChunkedPullResponse::Count() const {
  absl::InlinedVector<uint64_t, 8> ends;
  uint64_t end = 0;
  for (const BoundSlice& slice : request_.slices) {
    end += slice.rows() * RowBytes(slice.values, slice.table->dim());
    ends.push_back(end);
  }
  CountPull(request_, arrived_, ends);
}

}  // namespace

void RespondToPull(BoundRequest request, std::shared_ptr<rpc::ServerCall> call,
                   TableCounters::Clock::time_point arrived, BufferPool* buffers,
                   const PullAnswerer& answerer) {
  const trace::Span traced(kTraceLookup, static_cast<int64_t>(request.step), request.worker);
  std::shared_ptr<char> memory = call->ResponseMemory(request.response_bytes);
  const bool in_place = memory != nullptr;  // the client reads the rows there
  if (!in_place && ChunkedPullResponse::Serves(request)) {
    return call->FinishInChunks(
        std::make_unique<ChunkedPullResponse>(std::move(request), call, arrived, buffers, answerer));
  }
  if (memory == nullptr) memory = buffers->Get(request.response_bytes);
  char* out = memory.get();
  v1::PullResponse header;
  SetAnswerer(answerer, &header);
  absl::InlinedVector<uint64_t, 8> ends;
  for (const BoundSlice& slice : request.slices) {
    const ServerTable::View view = slice.table->Look();
    v1::PullSliceResult* const result = AddResult(slice, view, &header);
    uint64_t rows = slice.rows();
    if (slice.conditional) {
      const absl::StatusOr<uint64_t> newer = WriteNewerRows(view, slice, !request.read_only, *buffers, out);
      if (!newer.ok()) return call->Finish(newer.status());
      slice.table->counters().AddUnchangedRows(rows - *newer);
      slice.table->counters().AddLocallyServedRows(slice.locally_served_rows);
      rows = *newer;
      out += BitmapBytes(slice.ids.size());
    } else if (absl::Status status =
                   WriteRows(*view.storage, slice, !request.read_only, *buffers, in_place, out);
               !status.ok()) {
      return call->Finish(status);
    }
    result->set_num_rows(rows);
    out += rows * RowBytes(slice.values, slice.table->dim());
    ends.push_back(reinterpret_cast<const char*>(out) - memory.get());
    if (!request.read_only) slice.table->counters().AddPulledIds(slice.ids);
  }
  CountPull(request, arrived, ends);
  const char* const data = memory.get();
  const size_t size = out - data;
  call->Finish(rpc::EncodeBulk(header, Bytes(Slice(std::move(memory), data, size))));
}

void PushResponder::SetPositions(const BoundRequest& request,
                                 absl::Span<const std::shared_ptr<ServerTable>> tables,
                                 absl::Span<const UpdatePosition> positions) {
  const auto unassigned = [](const UpdatePosition& position) { return position.update == 0; };
  if (std::all_of(positions.begin(), positions.end(), unassigned)) return;
  for (const BoundSlice& slice : request.slices) {
    const UpdatePosition& position =
        positions[std::find(tables.begin(), tables.end(), slice.table) - tables.begin()];
    v1::PushPlace* out = response_.add_places();
    out->set_update(position.update);
    out->set_stale(position.stale);
    out->set_first(position.first);
  }
}

void PushResponder::FinishDuplicate() {
  response_.set_duplicate(true);
  call_->Finish(rpc::internal::SerializeResponse(response_));
}

void PushResponder::AddRowStaleness(int num_slices, absl::Span<const SliceSegments> slices,
                                    absl::Span<const RowStalenessCounts> segments) {
  if (segments.empty()) return;
  absl::MutexLock lock(&mutex_);
  while (response_.row_staleness_size() < num_slices) response_.add_row_staleness();
  size_t at = 0;
  for (const SliceSegments& slice : slices) {
    for (int s = 0; s < slice.count; ++s, ++at) {
      if (slice.reported) {
        segments[at].ToProto(response_.mutable_row_staleness(slice.slice)->add_segments());
      }
    }
  }
}

void PushResponder::Settle(const absl::StatusOr<uint64_t>& missing_rows) {
  if (missing_rows.ok()) {
    missing_rows_ += *missing_rows;
  } else {
    absl::MutexLock lock(&mutex_);
    error_.Update(missing_rows.status());
  }
  if (--unsettled_ > 0) return;
  {
    absl::MutexLock lock(&mutex_);
    if (!error_.ok()) return call_->Finish(error_);
  }
  response_.set_missing_rows(missing_rows_);
  call_->Finish(rpc::internal::SerializeResponse(response_));
}

}  // namespace tandem::ps
