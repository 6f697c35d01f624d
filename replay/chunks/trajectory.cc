// SPDX-License-Identifier: Apache-2.0
#include "replay/chunks/trajectory.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/copy_bytes.h"
#include "base/status.h"

namespace tandem::replay {

absl::StatusOr<std::shared_ptr<const ItemLayout>> ItemLayout::Make(std::shared_ptr<const Signature> steps,
                                                                   const std::vector<std::string>& names,
                                                                   std::vector<size_t> sources) {
  if (names.size() != sources.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("an item has ", names.size(), " columns and ", sources.size(), " sources of columns"));
  }
  std::vector<Column> columns;
  for (size_t i = 0; i < names.size(); ++i) {
    if (sources[i] >= steps->size()) {
      return absl::InvalidArgumentError(absl::StrCat("column '", names[i], "' of an item comes from column ",
                                                     sources[i], " of the steps, which have ",
                                                     steps->size()));
    }
    Column& column = columns.emplace_back(steps->column(sources[i]));
    column.name = names[i];
  }
  auto layout = std::make_shared<ItemLayout>();
  TANDEM_ASSIGN_OR_RETURN(layout->items, Signature::Make(std::move(columns)));
  layout->steps = std::move(steps);
  layout->sources = std::move(sources);
  return std::shared_ptr<const ItemLayout>(std::move(layout));
}

uint64_t Trajectory::steps(size_t c) const {
  uint64_t steps = 0;
  for (size_t i = slices_begin(c); i < slices_end[c]; ++i) steps += slices[i].length;
  return steps;
}

uint64_t Trajectory::bytes() const {
  uint64_t bytes = 0;
  size_t slice = 0;
  for (size_t c = 0; c < slices_end.size(); ++c) {
    uint64_t steps = 0;
    for (; slice < slices_end[c]; ++slice) steps += slices[slice].length;
    bytes += steps * layout->items->step_bytes(c);
  }
  return bytes;
}

char* Trajectory::Copy(size_t c, char* out) const {
  const size_t source = layout->sources[c];
  const size_t step_bytes = layout->items->step_bytes(c);
  for (size_t i = slices_begin(c); i < slices_end[c]; ++i) {
    const ChunkSlice& slice = slices[i];
    const size_t bytes = slice.length * step_bytes;
    CopyBytes(out, chunks[slice.chunk]->column(source) + slice.offset * step_bytes, bytes);
    out += bytes;
  }
  return out;
}

void Trajectory::Share(size_t c, Bytes* out) const {
  const size_t source = layout->sources[c];
  const size_t step_bytes = layout->items->step_bytes(c);
  for (size_t i = slices_begin(c); i < slices_end[c]; ++i) {
    const ChunkSlice& slice = slices[i];
    const std::shared_ptr<const Chunk>& chunk = chunks[slice.chunk];
    out->Append(Slice(chunk, chunk->column(source) + slice.offset * step_bytes, slice.length * step_bytes));
  }
}

absl::Status Trajectory::Check() const {
  if (layout == nullptr || slices_end.size() != layout->items->size()) {
    return absl::InvalidArgumentError(absl::StrCat("an item has ", slices_end.size(),
                                                   " columns; its layout has ",
                                                   layout == nullptr ? 0 : layout->items->size()));
  }
  for (const std::shared_ptr<const Chunk>& chunk : chunks) {
    if (chunk->signature() != layout->steps) {
      return absl::InvalidArgumentError(absl::StrCat("an item refers to a chunk of columns ",
                                                     chunk->signature()->ToString(), " instead of ",
                                                     layout->steps->ToString()));
    }
  }
  size_t begin = 0;
  uint64_t bytes = 0;
  for (size_t c = 0; c < slices_end.size(); ++c) {
    if (slices_end[c] <= begin || slices_end[c] > slices.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("column '", layout->items->column(c).name, "' of an item has no steps"));
    }
    for (; begin < slices_end[c]; ++begin) {
      const ChunkSlice& slice = slices[begin];
      const uint64_t end = uint64_t{slice.offset} + slice.length;
      if (slice.chunk >= chunks.size()) {
        return absl::InvalidArgumentError(absl::StrCat("column '", layout->items->column(c).name,
                                                       "' of an item refers to chunk ", slice.chunk, " of ",
                                                       chunks.size()));
      }
      if (slice.length == 0 || end > chunks[slice.chunk]->steps()) {
        return absl::InvalidArgumentError(
            absl::StrCat("column '", layout->items->column(c).name, "' of an item has steps [", slice.offset,
                         ", ", end, ") of a chunk of ", chunks[slice.chunk]->steps(), " steps"));
      }
      bytes += slice.length * layout->items->step_bytes(c);
      if (bytes > kMaxBytes) {
        return absl::InvalidArgumentError(
            absl::StrCat("an item's values have more than ", kMaxBytes, " bytes: make it shorter"));
      }
    }
  }
  if (begin != slices.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("an item has ", slices.size(), " slices, and its columns have ", begin));
  }
  if (min_version > max_version) {
    return absl::InvalidArgumentError(absl::StrCat("an item's smallest policy version, ", min_version,
                                                   ", is above its largest, ", max_version));
  }
  return absl::OkStatus();
}

}  // namespace tandem::replay
