// SPDX-License-Identifier: Apache-2.0
#include "replay/server/insert_fence.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace tandem::replay {

absl::StatusOr<size_t> InsertFence::Begin(const InsertId& id, size_t items) {
  if (id.sequence == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("writer '", id.writer, "': sequence 0; sequences count from 1"));
  }
  absl::MutexLock lock(&mutex_);
  auto found = writers_.find(id.writer);
  if (found == writers_.end()) {
    if (writers_.size() >= kMaxWriters) ForgetOldest();
    found = writers_.emplace(id.writer, Writer{.incarnation = id.incarnation}).first;
  }
  Writer& writer = found->second;
  writer.used = ++requests_;
  if (id.incarnation < writer.incarnation) {
    return absl::FailedPreconditionError(absl::StrCat(
        "writer '", id.writer, "' of incarnation ", id.incarnation, " has been replaced by one of ",
        writer.incarnation, ", which uses the same name: stop one of the two"));
  }
  if (id.incarnation > writer.incarnation) writer = {.incarnation = id.incarnation, .used = requests_};
  if (id.acknowledged_items > writer.items) {
    lost_items_ += id.acknowledged_items - writer.items;
    writer.items = id.acknowledged_items;
  }
  if (id.sequence <= writer.sequence) {
    ++repeated_;
    return items;
  }
  return id.sequence == writer.partial_sequence ? std::min<size_t>(writer.partial, items) : 0;
}

void InsertFence::ForgetOldest() {
  // An eighth at a time, since it takes a while to find them.
  std::vector<uint64_t> used;
  for (const auto& [name, writer] : writers_) used.push_back(writer.used);
  const auto limit = used.begin() + static_cast<ptrdiff_t>(used.size() / 8);
  std::nth_element(used.begin(), limit, used.end());
  std::erase_if(writers_, [last = *limit](const auto& entry) { return entry.second.used <= last; });
}

void InsertFence::Progress(const InsertId& id, size_t inserted, size_t items) {
  absl::MutexLock lock(&mutex_);
  const auto found = writers_.find(id.writer);
  // A newer incarnation may have begun while the request waited; its state must stay.
  if (found == writers_.end() || found->second.incarnation != id.incarnation) return;
  Writer& writer = found->second;
  writer.items += inserted - (writer.partial_sequence == id.sequence ? writer.partial : 0);
  const bool whole = inserted == items;
  if (whole) writer.sequence = std::max(writer.sequence, id.sequence);
  writer.partial_sequence = whole ? 0 : id.sequence;
  writer.partial = whole ? 0 : inserted;
}

std::vector<v1::ReplayWriterFence> InsertFence::Save() const {
  std::vector<v1::ReplayWriterFence> saved;
  absl::MutexLock lock(&mutex_);
  for (const auto& [name, writer] : writers_) {
    v1::ReplayWriterFence& fence = saved.emplace_back();
    fence.set_writer(name);
    fence.set_incarnation(writer.incarnation);
    fence.set_sequence(writer.sequence);
    fence.set_partial_sequence(writer.partial_sequence);
    fence.set_partial(writer.partial);
    fence.set_items(writer.items);
  }
  return saved;
}

void InsertFence::Restore(const google::protobuf::RepeatedPtrField<v1::ReplayWriterFence>& fences,
                          uint64_t lost_items) {
  absl::MutexLock lock(&mutex_);
  writers_.clear();
  for (const v1::ReplayWriterFence& fence : fences) {
    writers_[fence.writer()] = {.incarnation = fence.incarnation(),
                                .sequence = fence.sequence(),
                                .partial_sequence = fence.partial_sequence(),
                                .partial = fence.partial(),
                                .items = fence.items(),
                                .used = ++requests_};
  }
  lost_items_ = lost_items;
}

uint64_t InsertFence::lost_items() const {
  absl::MutexLock lock(&mutex_);
  return lost_items_;
}

uint64_t InsertFence::repeated() const {
  absl::MutexLock lock(&mutex_);
  return repeated_;
}

}  // namespace tandem::replay
