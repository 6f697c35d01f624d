// SPDX-License-Identifier: Apache-2.0
#include "worker/data/shard_reader.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/status.h"

namespace tandem::worker {
namespace {

constexpr size_t kMaxReplacements = 1024;  // good lines kept to replace malformed ones
constexpr uint64_t kMalformedNamed = 10;   // logged by a reader, and named in its error

}  // namespace

ShardReader::ShardReader(std::shared_ptr<const void> keep_alive, const LineSource& source,
                         const SplitRule& rule, std::shared_ptr<const SplitIndex> index,
                         const ReadOptions& options, const Schema& schema,
                         std::vector<std::unique_ptr<LineParser>> parsers, uint64_t max_malformed)
    : keep_alive_(std::move(keep_alive)),
      source_(source),
      options_(options),
      schema_(schema),
      parsers_(std::move(parsers)),
      max_malformed_(max_malformed),
      order_(source, rule, options, std::move(index)) {}

bool ShardReader::NextLine(uint64_t* position) {
  if (!order_done_) {
    if (order_.Next(position)) return true;
    order_done_ = true;
  }
  if (options_.tail == ReadOptions::Tail::kExact || replaced_ == malformed_ || replacements_.empty())
    return false;
  *position = replacements_[replaced_++ % replacements_.size()];
  return true;
}

absl::Status ShardReader::RecordMalformed(uint64_t position, const std::string& reason) {
  ++malformed_;
  if (malformed_ <= kMalformedNamed) {
    const std::string text = absl::StrCat(source_.Describe(position), ": ", reason);
    LogWarning(absl::StrCat("malformed line left out: ", text));
    absl::StrAppend(&first_malformed_, malformed_ > 1 ? "; " : "", text);
  } else if (malformed_ == kMalformedNamed + 1) {
    LogWarning(absl::StrCat("these were the first ", kMalformedNamed,
                            " malformed lines; further ones are counted, but not reported"));
  }
  if (malformed_ <= max_malformed_) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("more than ", max_malformed_, " malformed lines (max_malformed): ",
                                          first_malformed_, malformed_ > kMalformedNamed ? "; ..." : ""));
}

absl::StatusOr<bool> ShardReader::Next(Batch* batch) {
  TANDEM_RETURN_IF_ERROR(error_);
  error_ = source_.CheckUnchanged();
  TANDEM_RETURN_IF_ERROR(error_);
  PrepareBatch(schema_, options_.batch_size, batch);
  size_t row = 0;
  uint64_t position = 0;
  std::string reason;
  while (row < options_.batch_size && NextLine(&position)) {
    size_t header = 0;
    const absl::string_view line = source_.LineAt(position, &header);
    if (parsers_[header]->Parse(line, row, batch, &reason)) {
      if (replacements_.size() < kMaxReplacements && !order_done_) replacements_.push_back(position);
      ++row;
      continue;
    }
    error_ = RecordMalformed(position, reason);
    if (!error_.ok()) break;
  }
  if (error_.ok() && row == 0 && malformed_ > 0 && replacements_.empty()) {
    error_ = absl::DataLossError(absl::StrCat("none of this worker's ", malformed_,
                                              " lines could be parsed: ", first_malformed_,
                                              malformed_ > kMalformedNamed ? "; ..." : ""));
  }
  TrimBatch(row, batch);
  TANDEM_RETURN_IF_ERROR(error_);
  return row > 0;
}

}  // namespace tandem::worker
