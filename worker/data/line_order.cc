// SPDX-License-Identifier: Apache-2.0
#include "worker/data/line_order.h"

#include <utility>

namespace tandem::worker {

LineOrder::LineOrder(const LineSource& source, const SplitRule& rule, const ReadOptions& options,
                     std::shared_ptr<const SplitIndex> index)
    : rule_(rule), options_(options), cursor_(source), random_(options.seed, Mix64(options.epoch)) {
  if (index != nullptr) indexed_.emplace(std::move(index), options.split);
}

bool LineOrder::NextInSplit(uint64_t* position) {
  if (indexed_.has_value()) return indexed_->Next(position);
  uint64_t candidate = 0;
  absl::string_view line;
  while (cursor_.Next(&candidate, &line)) {
    if (rule_.Of(line, lines_++) != options_.split) continue;
    *position = candidate;
    return true;
  }
  return false;
}

bool LineOrder::NextInOrder(uint64_t* position) {
  if (!options_.shuffle) return NextInSplit(position);
  uint64_t incoming = 0;
  if (!filled_) {
    while (buffer_.size() < options_.shuffle_buffer && NextInSplit(&incoming)) buffer_.push_back(incoming);
    filled_ = true;
  }
  if (buffer_.empty()) return false;
  exhausted_ = exhausted_ || !NextInSplit(&incoming);
  uint64_t& slot = buffer_[random_.Below(buffer_.size())];
  *position = slot;
  if (exhausted_) {
    slot = buffer_.back();
    buffer_.pop_back();
  } else {
    slot = incoming;
  }
  return true;
}

bool LineOrder::Next(uint64_t* position) {
  if (done_) return false;
  const size_t world = options_.world_size;
  const size_t rank = options_.rank;
  uint64_t own = 0;
  size_t taken = 0;  // of this round, in which each worker gets one line
  for (; taken < world; ++taken) {
    uint64_t candidate = 0;
    if (!NextInOrder(&candidate)) break;
    if (taken == rank) own = candidate;
    if (first_.size() < world) first_.push_back(candidate);
  }
  if (taken < world) {
    done_ = true;
    const bool lacking = taken <= rank;
    if (taken == 0 || options_.tail == ReadOptions::Tail::kDrop) return false;
    if (lacking && options_.tail == ReadOptions::Tail::kExact) return false;
    if (lacking) own = first_[(rank - taken) % first_.size()];
  }
  *position = own;
  return true;
}

}  // namespace tandem::worker
