// SPDX-License-Identifier: Apache-2.0
#include "replay/chunks/signature.h"

#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tandem::replay {
namespace {

// Returns the bytes of a value; more than kMaxStepBytes if it has more, without overflow.
size_t ValueBytes(const Column& column) {
  size_t bytes = SizeOf(column.dtype);
  for (const int64_t dimension : column.shape) {
    if (bytes > Signature::kMaxStepBytes || dimension > static_cast<int64_t>(Signature::kMaxStepBytes)) {
      return Signature::kMaxStepBytes + 1;
    }
    bytes *= static_cast<size_t>(dimension);
  }
  return bytes;
}

absl::Status CheckColumn(const Column& column) {
  if (column.name.empty() || column.name.size() > Signature::kMaxNameBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a column's name has ", column.name.size(),
                                                   " bytes; it must have 1 to ", Signature::kMaxNameBytes));
  }
  if (SizeOf(column.dtype) == 0) {
    return absl::InvalidArgumentError(absl::StrCat("column '", column.name, "': ", Name(column.dtype), " ",
                                                   static_cast<int>(column.dtype)));
  }
  for (const int64_t dimension : column.shape) {
    if (dimension < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("column ", column.ToString(), ": dimensions must be at least 1"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string Column::ToString() const {
  return absl::StrCat(name, " ", Name(dtype),
                      shape.empty() ? "" : absl::StrCat("[", absl::StrJoin(shape, ","), "]"));
}

absl::StatusOr<std::shared_ptr<const Signature>> Signature::Make(std::vector<Column> columns) {
  if (columns.empty() || columns.size() > kMaxColumns) {
    return absl::InvalidArgumentError(
        absl::StrCat(columns.size(), " columns; there must be 1 to ", kMaxColumns));
  }
  absl::flat_hash_set<absl::string_view> names;
  size_t bytes = 0;
  for (const Column& column : columns) {
    if (absl::Status status = CheckColumn(column); !status.ok()) return status;
    if (!names.insert(column.name).second) {
      return absl::InvalidArgumentError(absl::StrCat("there are two columns '", column.name, "'"));
    }
    bytes += ValueBytes(column);
    if (bytes > kMaxStepBytes) {
      return absl::InvalidArgumentError(absl::StrCat(
          "column ", column.ToString(), ": a step would have more than ", kMaxStepBytes, " bytes"));
    }
  }
  return std::shared_ptr<const Signature>(new Signature(std::move(columns)));
}

Signature::Signature(std::vector<Column> columns) : columns_(std::move(columns)) {
  bytes_before_.push_back(0);
  for (const Column& column : columns_) {
    step_bytes_.push_back(ValueBytes(column));
    bytes_before_.push_back(bytes_before_.back() + step_bytes_.back());
  }
}

std::optional<size_t> Signature::Find(absl::string_view name) const {
  for (size_t c = 0; c < columns_.size(); ++c) {
    if (columns_[c].name == name) return c;
  }
  return std::nullopt;
}

std::string Signature::ToString() const {
  return absl::StrCat(
      "[",
      absl::StrJoin(columns_, ", ",
                    [](std::string* out, const Column& column) { absl::StrAppend(out, column.ToString()); }),
      "]");
}

}  // namespace tandem::replay
