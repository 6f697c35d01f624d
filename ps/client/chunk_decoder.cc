// SPDX-License-Identifier: Apache-2.0
#include "ps/client/chunk_decoder.h"

#include <algorithm>
#include <utility>

#include "ps/trace_kinds.h"
#include "ps/wire/value_codec.h"
#include "rpc/wire/bulk_codec.h"

namespace tandem::ps {

void ChunkDecoder::OnChunk(uint64_t offset, uint64_t total, Bytes chunk) {
  bytes_left_ = total - offset - chunk.size();
  if (offset == 0) {
    Begin(total, std::move(chunk));
  } else if (in_order_) {
    if (check_status_.ok()) Decode(chunk);
  } else {
    buffered_.Append(std::move(chunk));
  }
}

void ChunkDecoder::Begin(uint64_t total, Bytes chunk) {
  check_status_ = absl::OkStatus();
  buffered_ = Bytes();
  slice_ = row_ = 0;
  partial_row_.clear();
  v1::PullResponse header;
  const std::optional<size_t> head = rpc::DecodeBulkHead(chunk, total, &header);
  in_order_ = head.has_value();
  if (!in_order_) {
    buffered_ = std::move(chunk);
    return;
  }
  check_status_ = check_(header, total - *head);
  if (check_status_.ok()) Decode(chunk.Sub(*head, chunk.size() - *head));
}

void ChunkDecoder::Decode(const Bytes& bytes) {
  const trace::Span traced(kTraceDecodePull);
  BytesReader reader(bytes);
  // `check_` guarantees that the bytes are those of the slices' rows.
  while (reader.remaining() > 0) {
    while (row_ == slices_[slice_].rows) {
      ++slice_;
      row_ = 0;
    }
    const RowDestination& slice = slices_[slice_];
    const size_t row_bytes = RowBytes(slice.values, slice.dim);
    if (partial_row_.empty() && reader.remaining() >= row_bytes) {
      Put(&reader, std::min(slice.rows - row_, reader.remaining() / row_bytes));
      continue;
    }
    const size_t begun = partial_row_.size();
    const size_t more = std::min(row_bytes - begun, reader.remaining());
    partial_row_.resize(begun + more);
    reader.Copy(partial_row_.data() + begun, more);
    if (partial_row_.size() < row_bytes) return;
    const Bytes row(Slice::Unowned(partial_row_.data(), row_bytes));
    BytesReader row_reader(row);
    Put(&row_reader, 1);
    partial_row_.clear();
  }
}

void ChunkDecoder::Put(BytesReader* in, size_t count) {
  const RowDestination& slice = slices_[slice_];
  if (slice.positions != nullptr) {
    DecodeRows(slice.values, in, slice.positions + row_, count, slice.dim, slice.floats);
  } else {
    DecodeRows(slice.values, in, nullptr, count, slice.dim, slice.floats + row_ * slice.dim);
  }
  row_ += count;
}

absl::StatusOr<std::optional<Bytes>> ChunkDecoder::Finish(Bytes rest) {
  // The last attempt may have returned the response as a whole.
  if (bytes_left_ != 0 || !rest.empty()) return rest;
  if (!in_order_) return std::exchange(buffered_, Bytes());
  if (!check_status_.ok()) return check_status_;
  return std::nullopt;
}

}  // namespace tandem::ps
