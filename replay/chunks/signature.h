// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_REPLAY_CHUNKS_SIGNATURE_H_
#define TANDEM_REPLAY_CHUNKS_SIGNATURE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/numeric/dtype.h"

namespace tandem::replay {

// A named column: the type and shape of one value of each step, such as an observation. A plain value.
struct Column {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  // of one step; empty: a scalar

  // Returns "observation f32[4]".
  std::string ToString() const;
  friend bool operator==(const Column&, const Column&) = default;
};

// The columns of a writer's steps, or of a table's items. Immutable, thus thread-safe.
class Signature {
 public:
  static constexpr size_t kMaxColumns = 256;
  static constexpr size_t kMaxNameBytes = 128;
  static constexpr size_t kMaxStepBytes = size_t{1} << 30;

  // InvalidArgument, which names the column: no columns or more than kMaxColumns, an empty, long or repeated
  // name, an unknown dtype, a dimension below 1, or steps of more than kMaxStepBytes.
  static absl::StatusOr<std::shared_ptr<const Signature>> Make(std::vector<Column> columns);

  size_t size() const { return columns_.size(); }
  const std::vector<Column>& columns() const { return columns_; }
  const Column& column(size_t c) const { return columns_[c]; }
  // Returns the index of a column, or nullopt.
  std::optional<size_t> Find(absl::string_view name) const;

  // Returns the bytes of one step's value of column `c`.
  size_t step_bytes(size_t c) const { return step_bytes_[c]; }
  // Returns the bytes of one step's values of all columns before `c`; with c = size(), of all columns.
  size_t bytes_before(size_t c) const { return bytes_before_[c]; }
  // Returns the bytes of one step.
  size_t step_bytes() const { return bytes_before_.back(); }

  // Returns "[observation f32[4], action i32]".
  std::string ToString() const;

 private:
  explicit Signature(std::vector<Column> columns);

  const std::vector<Column> columns_;
  std::vector<size_t> step_bytes_, bytes_before_;
};

}  // namespace tandem::replay

#endif  // TANDEM_REPLAY_CHUNKS_SIGNATURE_H_
