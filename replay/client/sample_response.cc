// SPDX-License-Identifier: Apache-2.0
#include "replay/client/sample_response.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "replay/wire/messages.h"
#include "rpc/wire/bulk_codec.h"

namespace tandem::replay {
namespace {

// Returns the payload as one run of memory that is aligned to 8 bytes. Shares the transport's memory while
// the bytes in `in_place` permit it; otherwise copies.
std::shared_ptr<const char> PayloadMemory(const Bytes& payload, const std::shared_ptr<BatchMemory>& batches) {
  const size_t size = payload.size();
  const bool one = payload.slices().size() == 1 && payload.slices()[0].owner() != nullptr &&
                   reinterpret_cast<uintptr_t>(payload.slices()[0].data()) % 8 == 0;
  if (one) {
    if (batches->in_place.fetch_add(size) + size <= batches->max_in_place) {
      const Slice slice = payload.slices()[0];
      return std::shared_ptr<const char>(
          slice.data(), [owner = slice.owner(), batches, size](const char*) { batches->in_place -= size; });
    }
    batches->in_place -= size;
  }
  std::shared_ptr<char> copy = batches->buffers.Get(size);
  BytesReader(payload).Copy(copy.get(), size);
  return copy;
}

// Returns the batch of `response`, whose payload is the `size` bytes at `memory`.
absl::StatusOr<Batch> DecodeBatch(const v1::ReplaySampleResponse& response,
                                  const std::shared_ptr<const char>& memory, size_t size) {
  Batch batch;
  batch.keys.assign(response.keys().begin(), response.keys().end());
  batch.probabilities.assign(response.probabilities().begin(), response.probabilities().end());
  batch.priorities.assign(response.priorities().begin(), response.priorities().end());
  batch.times_sampled.assign(response.times_sampled().begin(), response.times_sampled().end());
  batch.min_versions.assign(response.min_versions().begin(), response.min_versions().end());
  batch.max_versions.assign(response.max_versions().begin(), response.max_versions().end());
  batch.table_items = response.table_items();
  batch.mass = response.mass();
  if (response.has_committed_version()) batch.committed_version = response.committed_version();
  const size_t n = batch.keys.size();
  const auto malformed = [](absl::string_view what) {
    return absl::InternalError(absl::StrCat("the server's sample is malformed: ", what));
  };
  for (const size_t length : {batch.probabilities.size(), batch.priorities.size(), batch.times_sampled.size(),
                              batch.min_versions.size(), batch.max_versions.size()}) {
    if (length != n) return malformed("its lists differ in length");
  }
  for (const v1::ReplayBatchColumn& message : response.columns()) {
    BatchColumn& column = batch.columns.emplace_back();
    ColumnMessages one;
    *one.Add() = message.column();
    TANDEM_ASSIGN_OR_RETURN(std::vector<Column> columns, FromProto(one));
    TANDEM_ASSIGN_OR_RETURN(const auto signature, Signature::Make(columns));
    column.column = std::move(columns[0]);
    column.steps = message.steps();
    column.lengths.assign(message.lengths().begin(), message.lengths().end());
    if (column.lengths.empty()) {
      column.total_steps = uint64_t{column.steps} * n;
    } else {
      if (column.lengths.size() != n) return malformed("a column has other items");
      for (const uint32_t length : column.lengths) {
        if (length == 0) return malformed("an item without steps");
        column.total_steps += length;
      }
    }
    column.bytes = message.bytes();
    if (column.total_steps > size || column.bytes != column.total_steps * signature->step_bytes(0) ||
        message.offset() % 8 != 0 || message.offset() > size || column.bytes > size - message.offset()) {
      return malformed("a column lies outside the payload");
    }
    column.data = std::shared_ptr<const char>(memory, memory.get() + message.offset());
  }
  return batch;
}

}  // namespace

void SampleResponse::OnChunk(uint64_t offset, uint64_t total, Bytes chunk) {
  if (offset == 0) {
    chunks_ = Bytes();
    header_.Clear();
    const std::optional<size_t> head = rpc::DecodeBulkHead(chunk, total, &header_);
    copies_ = head.has_value();
    copied_ = 0;
    if (copies_) {
      size_ = total - *head;
      values_ = memory_->buffers.Get(size_);
      chunk = chunk.Sub(*head, chunk.size() - *head);
    }
  }
  if (!copies_) return chunks_.Append(std::move(chunk));
  BytesReader(chunk).Copy(values_.get() + copied_, chunk.size());
  copied_ += chunk.size();
}

absl::StatusOr<Batch> SampleResponse::Finish(const Bytes& rest) {
  if (rest.empty() && copies_ && copied_ == size_) return DecodeBatch(header_, std::move(values_), size_);
  v1::ReplaySampleResponse response;
  Bytes payload;
  TANDEM_RETURN_IF_ERROR(rpc::DecodeBulk(rest.empty() ? chunks_ : rest, &response, &payload));
  return DecodeBatch(response, PayloadMemory(payload, memory_), payload.size());
}

}  // namespace tandem::replay
