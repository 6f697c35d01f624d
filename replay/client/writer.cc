// SPDX-License-Identifier: Apache-2.0
#include "replay/client/writer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/counted.h"
#include "base/status.h"
#include "replay/client/may_repeat.h"

namespace tandem::replay {
namespace {

constexpr uint32_t kMaxChunkSteps = 1 << 20;
constexpr size_t kMaxLayouts = 64;
constexpr uint32_t kMaxRepeats = 4096;

absl::Status CheckOptions(const WriterOptions& options, size_t step_bytes) {
  if (options.chunk_steps < 1 || options.chunk_steps > kMaxChunkSteps) {
    return absl::InvalidArgumentError(absl::StrCat("chunk_steps is ", options.chunk_steps,
                                                   "; it must be at least 1 and at most ", kMaxChunkSteps));
  }
  if (options.chunk_steps * step_bytes > Signature::kMaxStepBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a chunk of ", options.chunk_steps, " steps would have ", options.chunk_steps * step_bytes,
        " bytes, and at most ", Signature::kMaxStepBytes, " are possible: lower chunk_steps"));
  }
  if (options.history_steps < 1 || options.max_pending_items < 1) {
    return absl::InvalidArgumentError("history_steps and max_pending_items must be at least 1");
  }
  return absl::OkStatus();
}

absl::Status CheckValue(const Column& column, size_t bytes, const ConstTensorView& value) {
  if (value.dtype == column.dtype && value.bytes() == bytes && value.data != nullptr &&
      value.device == Device::Cpu()) {
    return absl::OkStatus();
  }
  if (value.device != Device::Cpu()) {
    return absl::InvalidArgumentError(
        absl::StrCat("column ", column.ToString(), ": the value is not on the CPU"));
  }
  return absl::InvalidArgumentError(absl::StrCat("column ", column.ToString(), " takes ",
                                                 bytes / SizeOf(column.dtype), " values, not ", value.count,
                                                 " of ", Name(value.dtype)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Writer>> Writer::Create(Replay* replay, std::vector<Column> columns,
                                                       WriterOptions options) {
  const size_t users = columns.size();
  for (const Column& column : columns) {
    if (column.name == kIsFirstColumn || column.name == kPolicyVersionColumn) {
      return absl::InvalidArgumentError(
          absl::StrCat("writer '", options.name, "': the writer adds column '", column.name, "' itself"));
    }
  }
  columns.push_back({.name = kIsFirstColumn, .dtype = DType::kU8});
  columns.push_back({.name = kPolicyVersionColumn, .dtype = DType::kI64});
  absl::StatusOr<std::shared_ptr<const Signature>> signature = Signature::Make(std::move(columns));
  if (!signature.ok()) return Annotate(signature.status(), absl::StrCat("writer '", options.name, "'"));
  TANDEM_RETURN_IF_ERROR(Annotate(CheckOptions(options, (*signature)->step_bytes()),
                                  absl::StrCat("writer '", options.name, "'")));
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<InsertStream> stream, replay->OpenStream(options.name));
  std::unique_ptr<Writer> writer(
      new Writer(replay, std::move(stream), *std::move(signature), users, std::move(options)));
  if (users > 0) {
    std::vector<std::string> names;
    std::vector<size_t> sources;
    for (size_t c = 0; c < users; ++c) {
      names.push_back(writer->signature_->column(c).name);
      sources.push_back(c);
    }
    TANDEM_ASSIGN_OR_RETURN(writer->all_columns_, ItemLayout::Make(writer->signature_, names, sources));
  }
  return writer;
}

Writer::Writer(Replay* replay, std::unique_ptr<InsertStream> stream,
               std::shared_ptr<const Signature> signature, size_t columns, WriterOptions options)
    : replay_(replay),
      stream_(std::move(stream)),
      signature_(std::move(signature)),
      columns_(columns),
      options_(std::move(options)) {}

uint64_t Writer::oldest_step() const { return next_step_ - versions_.size(); }

absl::Status Writer::Append(absl::Span<const ConstTensorView> values, const StepInfo& info,
                            std::optional<absl::Time> deadline) {
  if (values.size() != columns_) {
    return absl::InvalidArgumentError(absl::StrCat(
        "writer '", options_.name, "': a step of ", Counted(static_cast<int64_t>(values.size()), "value"),
        "; there are ", Counted(static_cast<int64_t>(columns_), "column")));
  }
  for (size_t c = 0; c < columns_; ++c) {
    if (absl::Status status = CheckValue(signature_->column(c), signature_->step_bytes(c), values[c]);
        !status.ok()) {
      return Annotate(status, absl::StrCat("writer '", options_.name, "'"));
    }
  }
  const uint8_t is_first = info.is_first || next_step_ == 0 ? 1 : 0;
  if (current_ == nullptr) {
    current_ = std::make_unique_for_overwrite<char[]>(options_.chunk_steps * signature_->step_bytes());
  }
  for (size_t c = 0; c < signature_->size(); ++c) {
    const void* const from = c < columns_    ? values[c].data
                             : c == columns_ ? static_cast<const void*>(&is_first)
                                             : static_cast<const void*>(&info.policy_version);
    char* const column = current_.get() + options_.chunk_steps * signature_->bytes_before(c);
    std::memcpy(column + current_steps_ * signature_->step_bytes(c), from, signature_->step_bytes(c));
  }
  if (is_first != 0) {
    episode_begin_ = next_step_;
    episode_begins_.push_back(next_step_);
  }
  ++current_steps_;
  ++next_step_;
  versions_.push_back(info.policy_version);
  if (versions_.size() > options_.history_steps) versions_.pop_front();
  while (episode_begins_.size() > 1 && episode_begins_[1] <= oldest_step()) episode_begins_.pop_front();
  absl::Status renewed;
  if (!tickets_.empty() && !options_.deliver_on_request) renewed = RenewTickets();
  const bool item_follows = std::exchange(item_follows_, false);
  bool deliver = std::exchange(delivery_due_, false);
  if (current_steps_ == options_.chunk_steps) {
    CutChunk();
    // A user who makes an item of each newest step does so now: then one call delivers them all.
    const bool blocked = std::any_of(queues_.begin(), queues_.end(),
                                     [](const TableQueue& queue) { return !queue.ready.empty(); });
    if (item_follows && !blocked) {
      delivery_due_ = true;
    } else {
      deliver = true;
    }
  }
  if (deliver) {
    const absl::Status delivered = DeliverOrDefer(deadline);
    if (!delivered.ok()) return delivered;
  }
  return renewed;
}

void Writer::CutChunk() {
  if (current_steps_ == 0) return;
  std::unique_ptr<char[]> bytes;
  if (current_steps_ == options_.chunk_steps) {
    bytes = std::move(current_);
  } else {
    bytes = std::make_unique_for_overwrite<char[]>(current_steps_ * signature_->step_bytes());
    for (size_t c = 0; c < signature_->size(); ++c) {
      std::memcpy(bytes.get() + current_steps_ * signature_->bytes_before(c),
                  current_.get() + options_.chunk_steps * signature_->bytes_before(c),
                  current_steps_ * signature_->step_bytes(c));
    }
  }
  chunks_.push_back(
      {.first = next_step_ - current_steps_,
       .chunk = std::make_shared<const Chunk>(next_chunk_++, signature_, current_steps_, std::move(bytes))});
  current_steps_ = 0;
}

void Writer::DropOldChunks() {
  uint64_t needed = oldest_step();
  for (const TableQueue& queue : queues_) {
    for (const PendingItem& item : queue.pending) needed = std::min(needed, item.first);
  }
  while (!chunks_.empty() && chunks_.front().first + chunks_.front().chunk->steps() <= needed) {
    chunks_.pop_front();
  }
  stream_->ReleaseBelow(chunks_.empty() ? next_chunk_ : chunks_.front().chunk->key());
}

Window Writer::Last(uint32_t steps, uint32_t skip, bool across_episodes) const {
  const uint64_t back = uint64_t{steps} + skip;
  if (steps == 0 || back > versions_.size()) return {};
  if (!across_episodes && back > episode_steps()) return {};
  return {.first = next_step_ - back, .steps = steps};
}

Window Writer::Stack(uint32_t steps, uint32_t skip) const {
  if (steps == 0 || skip >= versions_.size()) return {};
  const uint64_t end = next_step_ - skip;
  const auto later = std::upper_bound(episode_begins_.begin(), episode_begins_.end(), end - 1);
  const uint64_t begin = *std::prev(later);
  if (end - begin >= steps) return Last(steps, skip, /*across_episodes=*/true);  // only skipped steps are
  if (begin < oldest_step()) return {};
  const auto present = static_cast<uint32_t>(end - begin);
  return {.first = begin, .steps = present, .repeat_first = steps - present};
}

absl::StatusOr<std::shared_ptr<const ItemLayout>> Writer::Layout(absl::Span<const ItemColumn> columns) {
  for (const std::shared_ptr<const ItemLayout>& layout : layouts_) {
    if (layout->sources.size() != columns.size()) continue;
    bool same = true;
    for (size_t i = 0; i < columns.size() && same; ++i) {
      same = layout->items->column(i).name == columns[i].name &&
             signature_->column(layout->sources[i]).name == columns[i].source;
    }
    if (same) return layout;
  }
  std::vector<std::string> names;
  std::vector<size_t> sources;
  for (const ItemColumn& column : columns) {
    const std::optional<size_t> source = signature_->Find(column.source);
    if (!source) {
      return absl::InvalidArgumentError(absl::StrCat("column '", column.name, "' of an item comes from '",
                                                     column.source, "', which is none of ",
                                                     signature_->ToString()));
    }
    names.emplace_back(column.name);
    sources.push_back(*source);
  }
  TANDEM_ASSIGN_OR_RETURN(auto layout, ItemLayout::Make(signature_, names, std::move(sources)));
  if (layouts_.size() == kMaxLayouts) layouts_.erase(layouts_.begin());
  layouts_.push_back(layout);
  return layout;
}

absl::Status Writer::CreateItem(absl::string_view table, std::optional<double> priority,
                                absl::Span<const ItemColumn> columns, std::optional<absl::Time> deadline) {
  PendingItem item = {.priority = priority};
  absl::StatusOr<std::shared_ptr<const ItemLayout>> layout = Layout(columns);
  if (!layout.ok()) return Annotate(layout.status(), absl::StrCat("writer '", options_.name, "'"));
  item.layout = *std::move(layout);
  for (const ItemColumn& column : columns) item.windows.push_back(column.window);
  return Add(table, std::move(item), deadline);
}

absl::Status Writer::CreateItem(absl::string_view table, std::optional<double> priority, const Window& window,
                                std::optional<absl::Time> deadline) {
  if (all_columns_ == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("writer '", options_.name, "' has no columns"));
  }
  return Add(table,
             {.priority = priority, .layout = all_columns_, .windows = std::vector<Window>(columns_, window)},
             deadline);
}

absl::Status Writer::Add(absl::string_view table, PendingItem item, std::optional<absl::Time> deadline) {
  if (item.priority && !(std::isfinite(*item.priority) && *item.priority >= 0)) {
    return absl::InvalidArgumentError(absl::StrCat("writer '", options_.name, "', table '", table,
                                                   "': priority ", *item.priority,
                                                   "; it must be finite and not negative"));
  }
  item.first = next_step_;
  item.min_version = std::numeric_limits<int64_t>::max();
  item.max_version = std::numeric_limits<int64_t>::min();
  for (const Window& window : item.windows) {
    const uint64_t end = window.first + window.steps;
    if (window.steps == 0 || window.first < oldest_step() || end > next_step_) {
      return absl::InvalidArgumentError(absl::StrCat(
          "writer '", options_.name, "', table '", table, "': an item of ", Counted(window.steps, "step"),
          " from step ", window.first, "; in reach are the steps [", oldest_step(), ", ", next_step_,
          ") (history_steps ", options_.history_steps, ")"));
    }
    if (window.repeat_first > kMaxRepeats) {
      return absl::InvalidArgumentError(
          absl::StrCat("writer '", options_.name, "', table '", table, "': a window repeats its first step ",
                       window.repeat_first, " times; at most ", kMaxRepeats, " are possible"));
    }
    const bool first = &window == item.windows.data();
    if (!first && window.first == (&window)[-1].first && window.steps == (&window)[-1].steps) continue;
    for (uint64_t step = window.first; step < end; ++step) {
      const int64_t version = versions_[step - oldest_step()];
      item.min_version = std::min(item.min_version, version);
      item.max_version = std::max(item.max_version, version);
    }
    item.first = std::min(item.first, window.first);
    item.end = std::max(item.end, end);
  }
  if (pending_ >= options_.max_pending_items) {
    const absl::Status delivered = DeliverOrDefer(deadline);
    if (pending_ >= options_.max_pending_items) {
      return absl::ResourceExhaustedError(
          absl::StrCat("writer '", options_.name, "': ", pending_,
                       " items wait for delivery, which is max_pending_items: ",
                       delivered.ok() ? "their chunks are not complete; call Flush, or lower chunk_steps"
                                      : std::string(delivered.message())));
    }
  }
  auto queue = std::find_if(queues_.begin(), queues_.end(),
                            [&](const TableQueue& existing) { return existing.table == table; });
  if (queue == queues_.end()) queue = queues_.insert(queue, TableQueue{.table = std::string(table)});
  for (TicketHolder& tickets : tickets_) {
    if (tickets.table() == table) item.ticket = tickets.Use();
  }
  if (item.end == next_step_) item_follows_ = true;
  const bool complete = item.end <= next_step_ - current_steps_;
  queue->pending.push_back(std::move(item));
  ++pending_;
  return complete ? DeliverOrDefer(deadline) : absl::OkStatus();
}

absl::Status Writer::Flush(absl::Time deadline) {
  CutChunk();
  return Deliver(deadline);
}

std::shared_ptr<const Trajectory> Writer::Build(const PendingItem& item) const {
  auto trajectory = std::make_shared<Trajectory>();
  trajectory->layout = item.layout;
  trajectory->min_version = item.min_version;
  trajectory->max_version = item.max_version;
  const auto add = [&](uint64_t first, uint64_t end) {
    auto stored = std::prev(
        std::upper_bound(chunks_.begin(), chunks_.end(), first,
                         [](uint64_t step, const StoredChunk& chunk) { return step < chunk.first; }));
    while (first < end) {
      const uint64_t stop = std::min(end, stored->first + stored->chunk->steps());
      const auto known = std::find(trajectory->chunks.begin(), trajectory->chunks.end(), stored->chunk);
      const auto index = static_cast<uint32_t>(known - trajectory->chunks.begin());
      if (known == trajectory->chunks.end()) trajectory->chunks.push_back(stored->chunk);
      trajectory->slices.push_back({.chunk = index,
                                    .offset = static_cast<uint32_t>(first - stored->first),
                                    .length = static_cast<uint32_t>(stop - first)});
      first = stop;
      ++stored;
    }
  };
  for (size_t c = 0; c < item.windows.size(); ++c) {
    const Window& window = item.windows[c];
    for (uint32_t i = 0; i < window.repeat_first; ++i) add(window.first, window.first + 1);
    add(window.first, window.first + window.steps);
    trajectory->slices_end.push_back(static_cast<uint32_t>(trajectory->slices.size()));
  }
  return trajectory;
}

absl::Status Writer::DeliverOrDefer(std::optional<absl::Time> deadline) {
  if (!options_.deliver_on_request) return deadline ? Deliver(*deadline) : Deliver();
  const uint64_t complete = next_step_ - current_steps_;
  deferred_ = std::any_of(queues_.begin(), queues_.end(), [&](const TableQueue& queue) {
    return !queue.ready.empty() || (!queue.pending.empty() && queue.pending.front().end <= complete);
  });
  if (!deferred_) DropOldChunks();
  return absl::OkStatus();
}

bool Writer::delivery_due() const {
  if (deferred_) return true;
  for (const TableQueue& queue : queues_) {
    if (!queue.ready.empty()) return true;
  }
  if (tickets_.empty()) return false;
  const absl::Time now = MonotonicNow();
  return std::any_of(tickets_.begin(), tickets_.end(),
                     [&](const TicketHolder& tickets) { return tickets.due(now); });
}

absl::Status Writer::Deliver(absl::Time deadline) {
  delivery_due_ = false;
  deferred_ = false;
  absl::Status first;
  if (!tickets_.empty() && options_.deliver_on_request) first = RenewTickets();
  const uint64_t complete = next_step_ - current_steps_;
  size_t tables = 0;
  for (TableQueue& queue : queues_) {
    while (!queue.pending.empty() && queue.pending.front().end <= complete) {
      const PendingItem& item = queue.pending.front();
      queue.ready.push_back({.priority = item.priority, .trajectory = Build(item), .ticket = item.ticket});
      queue.pending.pop_front();
    }
    if (!queue.ready.empty()) ++tables;
  }
  DropOldChunks();
  // A table that takes no inserts must not keep items from the others.
  for (const bool wait : {false, true}) {
    if (!wait && tables < 2) continue;
    for (TableQueue& queue : queues_) {
      const absl::Status status = DeliverTo(&queue, wait ? deadline : absl::InfinitePast());
      if (wait || !absl::IsDeadlineExceeded(status)) first.Update(status);
    }
  }
  return first;
}

absl::Status Writer::DeliverTo(TableQueue* queue, absl::Time deadline) {
  absl::Status first;
  bool alone = false;  // items are inserted one by one, to find those that the table refuses
  while (!queue->ready.empty()) {
    const absl::Span<const NewItem> all = queue->ready;
    size_t inserted = 0;
    const absl::Status status =
        stream_->Insert(queue->table, alone ? all.first(1) : all, deadline, &inserted);
    const bool refused = !status.ok() && !MayRepeat(status);
    if (refused && inserted == 0 && (alone || all.size() == 1)) {
      ++dropped_;
      inserted = 1;
    }
    RemoveReady(queue, inserted);
    first.Update(status);
    if (!status.ok() && !refused) return first;
    alone = alone || refused;
  }
  return first;
}

void Writer::RemoveReady(TableQueue* queue, size_t items) {
  const auto end = queue->ready.begin() + static_cast<ptrdiff_t>(items);
  for (TicketHolder& tickets : tickets_) {
    if (tickets.table() != queue->table) continue;
    for (auto item = queue->ready.begin(); item != end; ++item) tickets.Remove(item->ticket);
  }
  queue->ready.erase(queue->ready.begin(), end);
  pending_ -= items;
}

void Writer::Hold(absl::string_view table, const Ticket& ticket) {
  auto found = std::find_if(tickets_.begin(), tickets_.end(),
                            [&](const TicketHolder& tickets) { return tickets.table() == table; });
  if (found == tickets_.end()) {
    tickets_.emplace_back(std::string(table));
    found = std::prev(tickets_.end());
  }
  found->Add(ticket, MonotonicNow());
}

absl::Status Writer::RenewTickets() {
  const absl::Time now = MonotonicNow();
  absl::Status first;
  for (TicketHolder& tickets : tickets_) {
    if (!tickets.due(now)) continue;
    // A failure, and the end of a ticket that an item uses, show when the item is delivered.
    const absl::StatusOr<uint64_t> in_use = tickets.Renew(replay_, now);
    if (!in_use.ok() || *in_use >= tickets.size()) continue;
    const absl::StatusOr<size_t> ended = tickets.DropEnded(replay_);
    if (!ended.ok() || *ended == 0) continue;
    first.Update(absl::NotFoundError(
        absl::StrCat("writer '", options_.name, "', table '", tickets.table(),
                     "': ", Counted(static_cast<int64_t>(*ended), "ticket"),
                     " of this writer ended: its lease or the longest rollout (max_rollout) is over, or the "
                     "table was lost; the "
                     "item of this rollout would be refused: end the rollout, and ask for another ticket")));
  }
  return first;
}

}  // namespace tandem::replay
