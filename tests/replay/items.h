// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_REPLAY_ITEMS_H_
#define TANDEM_TESTS_REPLAY_ITEMS_H_

// Items of one column "id", for tests of tables.

#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "replay/table/table.h"

namespace tandem::replay::testing {

// Returns a layout with one column, i64, of this name.
inline std::shared_ptr<const ItemLayout> IdLayout(const std::string& name = "id") {
  auto signature = Signature::Make({{.name = name, .dtype = DType::kI64}});
  TANDEM_CHECK(signature.ok());
  auto layout = ItemLayout::Make(*signature, {name}, {0});
  TANDEM_CHECK(layout.ok());
  return *layout;
}

// Returns a chunk with the values first, first + 1, ...
inline std::shared_ptr<const Chunk> IdChunk(const std::shared_ptr<const ItemLayout>& layout, int64_t first,
                                            uint32_t steps) {
  auto bytes = std::make_unique<char[]>(steps * sizeof(int64_t));
  for (uint32_t i = 0; i < steps; ++i) {
    const int64_t value = first + i;
    std::memcpy(bytes.get() + i * sizeof(value), &value, sizeof(value));
  }
  return std::make_shared<const Chunk>(static_cast<uint64_t>(first), layout->steps, steps, std::move(bytes));
}

// Returns an item of `length` steps of a chunk.
inline NewItem ItemOf(const std::shared_ptr<const ItemLayout>& layout, std::shared_ptr<const Chunk> chunk,
                      uint32_t offset, uint32_t length, std::optional<double> priority = std::nullopt) {
  auto trajectory = std::make_shared<Trajectory>();
  trajectory->layout = layout;
  trajectory->chunks.push_back(std::move(chunk));
  trajectory->slices.push_back({.chunk = 0, .offset = offset, .length = length});
  trajectory->slices_end.push_back(1);
  return {.priority = priority, .trajectory = std::move(trajectory)};
}

// Returns an item of one step with the value `id`, in a chunk of its own.
inline NewItem IdItem(int64_t id, std::optional<double> priority = std::nullopt,
                      const std::shared_ptr<const ItemLayout>& layout = nullptr) {
  static const auto* const kLayout = new std::shared_ptr<const ItemLayout>(IdLayout());
  const auto& used = layout == nullptr ? *kLayout : layout;
  return ItemOf(used, IdChunk(used, id, 1), 0, 1, priority);
}

// Returns `count` items with the values first, first + 1, ...
inline std::vector<NewItem> IdItems(int64_t first, int64_t count) {
  std::vector<NewItem> items;
  for (int64_t i = 0; i < count; ++i) items.push_back(IdItem(first + i));
  return items;
}

// Returns the first value of an item.
inline int64_t IdOf(const Trajectory& trajectory) {
  const ChunkSlice& slice = trajectory.slices[0];
  int64_t id;
  std::memcpy(&id, trajectory.chunks[slice.chunk]->column(0) + slice.offset * sizeof(id), sizeof(id));
  return id;
}
inline std::vector<int64_t> IdsOf(const Sample& sample) {
  std::vector<int64_t> ids;
  for (const SampledItem& item : sample.items) ids.push_back(IdOf(*item.trajectory));
  return ids;
}

}  // namespace tandem::replay::testing

#endif  // TANDEM_TESTS_REPLAY_ITEMS_H_
