// SPDX-License-Identifier: Apache-2.0
// The state of a table: checkpoints, reports, and why calls wait.

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "replay/table/table.h"

namespace tandem::replay {
namespace {

// Returns "; learner/0 last sampled 41 s ago".
std::string Last(absl::string_view who, absl::string_view verb, absl::Time when, absl::Time now) {
  if (when == absl::InfinitePast()) return absl::StrCat("; nobody has ", verb, " yet");
  return absl::StrCat("; ", who.empty() ? "somebody" : who, " last ", verb, " ",
                      absl::ToInt64Seconds(now - when), " s ago");
}

}  // namespace

absl::StatusOr<std::shared_ptr<Table>> Table::Restore(TableSnapshot snapshot, Clock* clock) {
  TableOptions options = snapshot.options;
  if (options.columns.empty()) options.columns = snapshot.columns;
  TANDEM_RETURN_IF_ERROR(CheckTableOptions(options));
  std::shared_ptr<Table> table(new Table(options, snapshot.created, clock, /*first_serial=*/0));
  const auto wrong = [&](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("table '", options.name, "' of a checkpoint: ", what));
  };
  absl::flat_hash_set<uint32_t> slots;
  absl::flat_hash_set<uint64_t> tickets;
  uint64_t serial = 0;
  // Each slot has an item or is free. The table allocates them all.
  const uint64_t most_slots = snapshot.items.size() + snapshot.order.free.size();
  for (const uint32_t slot : snapshot.order.free) {
    if (slot >= most_slots) return wrong(absl::StrCat("there is no slot ", slot, " of ", most_slots));
  }
  absl::MutexLock lock(&table->mutex_);
  if (!options.columns.empty()) {
    TANDEM_ASSIGN_OR_RETURN(table->signature_, Signature::Make(options.columns));
  }
  table->options_.columns = snapshot.options.columns;
  for (const ItemStore::Item& item : snapshot.items) {
    if (item.trajectory == nullptr) return wrong("an item without content");
    TANDEM_RETURN_IF_ERROR(item.trajectory->Check());
    if (table->signature_ == nullptr ||
        item.trajectory->layout->items->columns() != table->signature_->columns()) {
      return wrong("an item has other columns than the table");
    }
    if (item.serial <= serial || item.serial > snapshot.serial)
      return wrong("items are not ordered by serial");
    serial = item.serial;
    const auto slot = static_cast<uint32_t>(item.key);
    if (slot >= most_slots || !slots.insert(slot).second || item.key >> 32 != (item.serial & 0xffffffff)) {
      return wrong(absl::StrCat("key ", item.key, " of an item is impossible"));
    }
    if (options.max_times_sampled > 0 && item.times_sampled >= options.max_times_sampled) {
      return wrong("an item has been sampled too often");
    }
    TANDEM_RETURN_IF_ERROR(Annotate(table->store_.CheckPriority(item.priority), "an item of a checkpoint"));
  }
  if (snapshot.items.size() > options.max_items) return wrong("it has more than max_items items");
  const bool paced = table->pace_ != nullptr;
  if (paced && snapshot.item_commits.size() != snapshot.items.size()) return wrong("tickets are missing");
  table->versions_.Restore(snapshot.versions);
  if (paced) {
    table->pace_->set_sampled(snapshot.position);
    table->pace_->SkipTickets(snapshot.last_ticket);
  }
  for (size_t i = 0; paced && i < snapshot.items.size(); ++i) {
    const ItemStore::Item& item = snapshot.items[i];
    if (item.ticket == 0 || item.ticket > snapshot.last_ticket ||
        snapshot.item_commits[i] > snapshot.versions.commits || !tickets.insert(item.ticket).second) {
      return wrong(absl::StrCat("ticket ", item.ticket, " of an item is impossible"));
    }
    table->pace_->Restore(item.ticket,
                          {.slot = static_cast<uint32_t>(item.key), .commit = snapshot.item_commits[i]});
  }
  TANDEM_RETURN_IF_ERROR(Annotate(table->store_.CheckPriority(snapshot.max_priority), "a checkpoint"));
  table->store_.Restore(std::move(snapshot.items), snapshot.serial, snapshot.draws, snapshot.max_priority,
                        snapshot.order, clock->Now());
  table->store_.SetBudgets(options.max_items, options.max_bytes);
  table->limiter_.Restore(snapshot.inserts, snapshot.samples, snapshot.credited, snapshot.limiter_offset);
  table->AfterRemovals();
  table->total_inserts_ = snapshot.inserts;
  table->total_samples_ = snapshot.samples;
  return table;
}

std::string Table::WhyNoInsert() const {
  if (pace_ != nullptr) return "";  // admitted items do not wait
  const std::string why = limiter_.WhyNoInsert(store_.size());
  if (why.empty()) return why;
  return absl::StrCat("table '", name(), "' ", why,
                      Last(last_sampler_, "sampled", last_sample_, clock_->Now()));
}

std::string Table::WhyNoSample(uint64_t batch) const {
  std::string why = limiter_.WhyNoSample(store_.size(), batch);
  if (pace_ != nullptr) why = pace_->WhyNoSample(batch, clock_->Now());
  if (why.empty() && Available() < batch) {
    why = absl::StrCat("gives no batch of ", batch, ": its items may be sampled ", store_.unspent(),
                       " times more (max_times_sampled ", options_.max_times_sampled, ")");
  }
  if (why.empty()) return why;
  const uint64_t removed = store_.removals().by_max_bytes;
  return absl::StrCat(
      "table '", name(), "' ", why,
      store_.size() < options_.limit.min_size && removed > 0
          ? absl::StrCat("; ", removed, " items have left because of max_bytes ", options_.max_bytes)
          : "",
      Last(last_inserter_, "inserted", last_insert_, clock_->Now()), MissingWeights());
}

void Table::set_find_weights(std::function<absl::StatusOr<std::string>(const CommittedVersion&)> find) {
  absl::MutexLock lock(&mutex_);
  find_weights_ = std::move(find);
}

absl::StatusOr<std::string> Table::FindWeights() const {
  absl::MutexLock lock(&mutex_);
  if (!find_weights_ || pace_ == nullptr || versions_.commits() == 0) return std::string();
  return find_weights_(versions_.head());
}

std::string Table::MissingWeights() const {
  if (!find_weights_ || pace_ == nullptr || versions_.commits() == 0) return "";
  const absl::StatusOr<std::string> found = find_weights_(versions_.head());
  return found.ok() ? "" : absl::StrCat("; ", found.status().message());
}

bool Table::MayLoseItems() const {
  absl::MutexLock lock(&mutex_);
  if (store_.size() == 0 || !ItemsLeaveByThemselves(options_)) return false;
  if (options_.ttl > absl::ZeroDuration()) return true;
  return samples_.empty() && (short_batch_ == 0 || Available() >= short_batch_);
}

std::string Table::WhyNotAdmitted(uint32_t count) const {
  if (pace_ == nullptr) return "";
  const std::string why = pace_->WhyNotAdmitted(count, clock_->Now());
  return why.empty()
             ? why
             : absl::StrCat("table '", name(), "' ", why,
                            Last(last_sampler_, "sampled", last_sample_, clock_->Now()), MissingWeights());
}

StalenessInfo Table::InfoOfStaleness() const {
  StalenessInfo info = lags_;
  info.commits = versions_.commits();
  if (info.commits > 0) info.head = versions_.head();
  if (pace_ == nullptr) return info;
  info.running = pace_->running();
  info.tickets = pace_->counts();
  info.waiting_admits = admits_.size();
  info.admit_wait_seconds = absl::ToDoubleSeconds(admit_wait_);
  if (const auto oldest = pace_->oldest()) {
    info.oldest_actor = oldest->actor;
    info.oldest_age = clock_->Now() - oldest->granted;
  }
  info.why_not_admitted = WhyNotAdmitted(admits_.empty() ? 1 : admits_.front()->request.count);
  return info;
}

TableInfo Table::Info() const {
  absl::MutexLock lock(&mutex_);
  const absl::Time now = clock_->Now();
  TableInfo info = {.options = options_,
                    .items = store_.size(),
                    .bytes = store_.bytes(),
                    .mass = store_.mass(),
                    .inserts = limiter_.inserts(),
                    .samples = limiter_.samples(),
                    .credited = limiter_.credited(),
                    .diff = limiter_.diff(),
                    .lowest_diff = limiter_.lowest_diff(),
                    .highest_diff = limiter_.highest_diff(),
                    .removals = store_.removals(),
                    .total_inserts = total_inserts_,
                    .total_samples = total_samples_,
                    .priority_updates = updates_,
                    .missed_priority_updates = missed_updates_,
                    .waiting_inserts = inserts_.size(),
                    .waiting_samples = samples_.size(),
                    .insert_wait_seconds = absl::ToDoubleSeconds(insert_wait_),
                    .sample_wait_seconds = absl::ToDoubleSeconds(sample_wait_),
                    .last_inserter = last_inserter_,
                    .last_sampler = last_sampler_,
                    .since_insert = now - last_insert_,
                    .since_sample = now - last_sample_,
                    .why_no_insert = WhyNoInsert(),
                    .why_no_sample = WhyNoSample(samples_.empty() ? 1 : samples_.front()->size.least()),
                    .staleness = InfoOfStaleness()};
  if (signature_ != nullptr) info.columns = signature_->columns();
  return info;
}

std::vector<ItemStore::Item> Table::Peek(uint32_t count, uint32_t* next) const {
  std::vector<ItemStore::Item> items;
  absl::MutexLock lock(&mutex_);
  uint32_t slot = *next;
  for (; slot < store_.slots() && items.size() < count; ++slot) {
    if (const ItemStore::Item* const item = store_.Slot(slot)) items.push_back(*item);
  }
  *next = slot < store_.slots() ? slot : 0;
  return items;
}

TableSnapshot Table::Snapshot(absl::FunctionRef<void()> locked) const {
  TableSnapshot snapshot;
  absl::flat_hash_map<uint64_t, uint64_t> commits;  // by ticket
  {
    absl::MutexLock lock(&mutex_);
    snapshot.options = options_;
    snapshot.created = created_;
    if (signature_ != nullptr) snapshot.columns = signature_->columns();
    snapshot.items.reserve(store_.size());
    for (uint32_t slot = 0; slot < store_.slots(); ++slot) {
      if (const ItemStore::Item* const item = store_.Slot(slot)) snapshot.items.push_back(*item);
    }
    snapshot.serial = store_.serial();
    snapshot.draws = store_.draws();
    snapshot.max_priority = store_.max_priority();
    snapshot.inserts = limiter_.inserts();
    snapshot.samples = limiter_.samples();
    snapshot.credited = limiter_.credited();
    snapshot.limiter_offset = limiter_.offset();
    snapshot.order = store_.order();
    snapshot.versions = versions_.state();
    if (pace_ != nullptr) {
      snapshot.position = pace_->sampled();
      snapshot.last_ticket = pace_->last_ticket();
      for (const ItemStore::Item& item : snapshot.items) commits[item.ticket] = pace_->CommitOf(item.ticket);
    }
    locked();
  }
  std::sort(snapshot.items.begin(), snapshot.items.end(),
            [](const ItemStore::Item& a, const ItemStore::Item& b) { return a.serial < b.serial; });
  if (!commits.empty()) {
    for (const ItemStore::Item& item : snapshot.items) snapshot.item_commits.push_back(commits[item.ticket]);
  }
  return snapshot;
}

std::shared_ptr<const Signature> Table::signature() const {
  absl::MutexLock lock(&mutex_);
  return signature_;
}

}  // namespace tandem::replay
