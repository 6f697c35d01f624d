#include "ps/server/request/response.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/ticks.h"
#include "ps/server/request/pooling.h"
#include "ps/wire/value_codec.h"

namespace tandem::ps {
namespace {

bool AlignedForFloats(const char* at) { return reinterpret_cast<uintptr_t>(at) % alignof(float) == 0; }

// Whether numbers of that type are encoded as the bits that they have: through floats the same would come
// out.
bool IsOfType(v1::ValueFormat values, DType type) {
  return (values == v1::VALUES_F16 && type == DType::kF16) ||
         (values == v1::VALUES_BF16 && type == DType::kBF16);
}

// Rows of a block: enough to keep a gather's pipeline busy.
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

// By the way that is the faster of late.
absl::Status GatherInPlace(TableStorage& storage, const ParsedSlice& slice, bool create, size_t bytes,
                           float* out) {
  CopyChoice& choice = slice.table->gathers();
  const CopyChoice::Way way = choice.Next();
  const int64_t begin = SteadyNanoseconds();
  TANDEM_RETURN_IF_ERROR(way == CopyChoice::kPlain ? storage.Gather(slice.ids, create, out)
                                                   : storage.GatherAround(slice.ids, create, out));
  choice.Note(way, bytes, SteadyNanoseconds() - begin);
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

absl::StatusOr<uint64_t> WriteNewerRows(const ServerTable::View& view, const ParsedSlice& slice, bool create,
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

absl::Status WriteRows(TableStorage& storage, const ParsedSlice& slice, bool create, BufferPool& buffers,
                       bool in_place, char* out) {
  if (slice.pooling != v1::NONE) return WritePooled(storage, slice, create, buffers, out);
  const size_t bytes = slice.rows() * RowBytes(slice.values, slice.table->dim());
  if (in_place && bytes >= CopyChoice::kWorthChoosing && slice.values == v1::VALUES_F32 &&
      AlignedForFloats(out)) {
    return GatherInPlace(storage, slice, create, bytes, reinterpret_cast<float*>(out));
  }
  return WriteUnpooledRows(storage, slice.ids, slice.values, slice.table->dim(), create, buffers, out);
}

}  // namespace tandem::ps
