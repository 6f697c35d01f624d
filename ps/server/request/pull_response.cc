#include "ps/server/request/pull_response.h"

#include <algorithm>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "base/status.h"
#include "ps/server/request/response.h"
#include "ps/trace_kinds.h"
#include "ps/wire/value_codec.h"
#include "rpc/wire/bulk_codec.h"

namespace tandem::ps {

bool PullResponseSource::Serves(const ParsedRequest& request) {
  if (request.response_bytes <= kMinChunk || request.slices.size() > kMaxSlices) return false;
  return std::all_of(request.slices.begin(), request.slices.end(), [](const ParsedSlice& slice) {
    return slice.pooling == v1::NONE && !slice.conditional && !slice.table->created_config().spill() &&
           RowBytes(slice.values, slice.table->dim()) <= kMinChunk / 2;
  });
}

PullResponseSource::PullResponseSource(ParsedRequest request, std::shared_ptr<rpc::ServerCall> call,
                                       TableCounters::Clock::time_point arrived, BufferPool* buffers)
    : request_(std::move(request)), call_(std::move(call)), arrived_(arrived), buffers_(buffers) {
  v1::PullResponse header;
  rows_.reserve(request_.slices.size());
  for (const ParsedSlice& slice : request_.slices) {
    v1::PullSliceResult* const result = header.add_slices();
    result->set_dim(slice.table->dim());
    result->set_values(slice.values);
    result->set_num_rows(slice.rows());
    // Seen before the rows are read: they hold at least the updates it counts.
    ServerTable::View view = slice.table->Look();
    result->set_version(view.version);
    result->set_applied(view.applied);
    result->set_generation(view.generation);
    rows_.push_back(std::move(view.storage));
  }
  head_ = rpc::EncodeBulkHead(header, request_.response_bytes);
}

Bytes PullResponseSource::Next(size_t limit) {
  const trace::Span traced(kTraceLookup, static_cast<int64_t>(request_.step), request_.worker);
  Bytes chunk;
  if (!begun_) {
    begun_ = true;
    chunk = head_;
    limit -= std::min(limit, head_.size());
  }
  // Rows begin where a line does, whatever came before.
  const std::shared_ptr<char> memory = request_.response_bytes == 0 ? nullptr : buffers_->Get(limit);
  char* out = memory.get();
  for (; slice_ < request_.slices.size(); ++slice_, row_ = 0) {
    const ParsedSlice& slice = request_.slices[slice_];
    const uint32_t dim = slice.table->dim();
    const size_t row_bytes = RowBytes(slice.values, dim);
    const size_t room = (limit - (out - memory.get())) / row_bytes;
    const absl::Span<const uint64_t> ids = slice.ids.subspan(row_, room);
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

void PullResponseSource::Count() const {
  absl::InlinedVector<uint64_t, 8> ends;
  uint64_t end = 0;
  for (const ParsedSlice& slice : request_.slices) {
    end += slice.rows() * RowBytes(slice.values, slice.table->dim());
    ends.push_back(end);
  }
  CountPull(request_, arrived_, ends);
}

void CountPull(const ParsedRequest& request, TableCounters::Clock::time_point arrived,
               absl::Span<const uint64_t> ends) {
  const std::vector<ParsedSlice>& slices = request.slices;
  for (size_t i = 0; i < slices.size(); ++i) {
    const auto same = [&](const ParsedSlice& other) { return other.table == slices[i].table; };
    if (std::any_of(slices.begin(), slices.begin() + i, same))
      continue;  // counted with the first of its table
    uint64_t bytes = 0;
    for (size_t j = i; j < slices.size(); ++j) {
      if (same(slices[j])) bytes += ends[j] - (j == 0 ? 0 : ends[j - 1]);
    }
    slices[i].table->counters().AddPull(arrived, bytes);
  }
}

}  // namespace tandem::ps
