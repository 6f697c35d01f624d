#include "ps/server/answer.h"

#include <algorithm>
#include <memory>

#include "base/status.h"
#include "ps/server/pooling.h"
#include "ps/wire/value_codec.h"

namespace tandem::ps {
namespace {

bool AlignedForFloats(const char* at) { return reinterpret_cast<uintptr_t>(at) % alignof(float) == 0; }

// Rows of a block: enough to keep a gather's pipeline busy.
size_t BlockRows(size_t dim) {
  constexpr size_t kBlockBytes = size_t{128} << 10;
  return std::clamp<size_t>(kBlockBytes / (dim * sizeof(float)), 64, 1024);
}

absl::Status WriteEncoded(TableStorage& storage, const ParsedSlice& slice, bool create, BufferPool& buffers,
                          char* out) {
  const size_t dim = slice.table->dim();
  const size_t row_bytes = RowBytes(slice.values, dim);
  const size_t block = std::min(BlockRows(dim), slice.ids.size());
  const std::shared_ptr<char> memory = buffers.Get(block * dim * sizeof(float));
  auto* const rows = reinterpret_cast<float*>(memory.get());
  for (size_t first = 0; first < slice.ids.size(); first += block) {
    const absl::Span<const uint64_t> ids = slice.ids.subspan(first, block);
    TANDEM_RETURN_IF_ERROR(storage.Gather(ids, create, rows));
    EncodeRows(slice.values, rows, nullptr, ids.size(), dim, out + first * row_bytes);
  }
  return absl::OkStatus();
}

absl::Status WritePooled(TableStorage& storage, const ParsedSlice& slice, bool create, BufferPool& buffers,
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

}  // namespace

absl::Status WriteRows(TableStorage& storage, const ParsedSlice& slice, bool create, BufferPool& buffers,
                       char* out) {
  if (slice.pooling != v1::NONE) return WritePooled(storage, slice, create, buffers, out);
  if (slice.values == v1::VALUES_F32 && AlignedForFloats(out)) {
    return storage.Gather(slice.ids, create, reinterpret_cast<float*>(out));
  }
  return WriteEncoded(storage, slice, create, buffers, out);
}

}  // namespace tandem::ps
