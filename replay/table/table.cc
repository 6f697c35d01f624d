// SPDX-License-Identifier: Apache-2.0
#include "replay/table/table.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tandem::replay {
namespace {

constexpr uint32_t kMaxBatch = uint32_t{1} << 20;
constexpr uint32_t kMaxSlots = uint32_t{1} << 31;

uint32_t LeastBatch(const SampleSize& size) { return size.min_batch == 0 ? size.batch : size.min_batch; }

// Returns "; learner/0 last sampled 41 s ago".
std::string Last(absl::string_view who, absl::string_view verb, absl::Time when, absl::Time now) {
  if (when == absl::InfinitePast()) return absl::StrCat("; nobody has ", verb, " yet");
  return absl::StrCat("; ", who.empty() ? "somebody" : who, " last ", verb, " ",
                      absl::ToInt64Seconds(now - when), " s ago");
}

// The result of a call that another thread may finish.
template <typename Result>
struct Waiter {
  absl::Mutex mutex;
  bool done ABSL_GUARDED_BY(mutex) = false;
  Result result ABSL_GUARDED_BY(mutex);
};

// Blocks until the call is over; at `deadline` ends it by `expire`.
template <typename Result>
Result Await(Waiter<Result>* waiter, Clock* clock, absl::Time deadline, absl::FunctionRef<void()> expire) {
  {
    absl::MutexLock lock(&waiter->mutex);
    if (clock->AwaitUntil(&waiter->mutex, absl::Condition(&waiter->done), deadline)) {
      return std::move(waiter->result);
    }
  }
  expire();
  absl::MutexLock lock(&waiter->mutex);
  waiter->mutex.Await(absl::Condition(&waiter->done));
  return std::move(waiter->result);
}

}  // namespace

struct Table::Finished {
  std::vector<std::unique_ptr<WaitingInsert>> inserts;
  std::vector<std::unique_ptr<WaitingSample>> samples;
  std::vector<std::shared_ptr<const Trajectory>> garbage;

  // Finishes the calls. To be called without the table's lock.
  void Run() {
    for (auto& insert : inserts) std::move(insert->done)(std::move(insert->status), insert->next);
    for (auto& sample : samples) std::move(sample->done)(std::move(sample->result));
  }
};

absl::StatusOr<std::shared_ptr<Table>> Table::Create(const TableOptions& options, Clock* clock) {
  TANDEM_RETURN_IF_ERROR(CheckTableOptions(options));
  std::shared_ptr<Table> table(new Table(options, clock));
  if (!options.columns.empty()) {
    TANDEM_ASSIGN_OR_RETURN(auto signature, Signature::Make(options.columns));
    absl::MutexLock lock(&table->mutex_);
    table->signature_ = std::move(signature);
  }
  return table;
}

Table::Table(const TableOptions& options, Clock* clock)
    : name_(options.name), clock_(clock), options_(options), store_(options), limiter_(options.limit) {}

Table::~Table() { Stop(); }

absl::StatusOr<std::shared_ptr<Table>> Table::Restore(TableSnapshot snapshot, Clock* clock) {
  TableOptions options = snapshot.options;
  if (options.columns.empty()) options.columns = snapshot.columns;
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<Table> table, Create(options, clock));
  const auto wrong = [&](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("table '", options.name, "' of a checkpoint: ", what));
  };
  absl::flat_hash_set<uint32_t> slots;
  uint64_t serial = 0;
  absl::MutexLock lock(&table->mutex_);
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
    if (slot >= kMaxSlots || !slots.insert(slot).second || item.key >> 32 != (item.serial & 0xffffffff)) {
      return wrong(absl::StrCat("key ", item.key, " of an item is impossible"));
    }
    if (options.max_times_sampled > 0 && item.times_sampled >= options.max_times_sampled) {
      return wrong("an item has been sampled too often");
    }
    TANDEM_RETURN_IF_ERROR(Annotate(table->store_.CheckPriority(item.priority), "an item of a checkpoint"));
  }
  if (snapshot.items.size() > options.max_items) return wrong("it has more than max_items items");
  TANDEM_RETURN_IF_ERROR(Annotate(table->store_.CheckPriority(snapshot.max_priority), "a checkpoint"));
  table->store_.Restore(std::move(snapshot.items), snapshot.serial, snapshot.draws, snapshot.max_priority);
  table->store_.SetBudgets(options.max_items, options.max_bytes);
  table->limiter_.Restore(snapshot.inserts, snapshot.samples, snapshot.credited);
  table->limiter_.Credited(table->store_.TakeCredits());
  table->total_inserts_ = snapshot.inserts;
  table->total_samples_ = snapshot.samples;
  return table;
}

absl::Status Table::CheckItems(absl::Span<const NewItem> items) {
  std::shared_ptr<const Signature> signature = signature_;
  std::shared_ptr<const ItemLayout> layout = checked_layout_;
  for (const NewItem& item : items) {
    if (item.trajectory == nullptr) return absl::InvalidArgumentError("an item has no content");
    TANDEM_RETURN_IF_ERROR(item.trajectory->Check());
    if (item.priority) TANDEM_RETURN_IF_ERROR(store_.CheckPriority(*item.priority));
    TANDEM_RETURN_IF_ERROR(store_.FitsAlone(*item.trajectory));
    if (item.trajectory->layout == layout) continue;
    layout = item.trajectory->layout;
    if (signature == nullptr) signature = layout->items;
    if (layout->items->columns() != signature->columns()) {
      return absl::InvalidArgumentError(absl::StrCat("an item has columns ", layout->items->ToString(),
                                                     "; the table has ", signature->ToString()));
    }
  }
  if (items.empty()) return absl::OkStatus();
  signature_ = std::move(signature);
  checked_layout_ = std::move(layout);
  return absl::OkStatus();
}

absl::Status Table::CheckSize(const SampleSize& size) const {
  if (size.batch < 1 || size.batch > kMaxBatch || size.min_batch > size.batch) {
    return absl::InvalidArgumentError(absl::StrCat("a batch of ", size.batch, " items, at least ",
                                                   size.min_batch, ": the batch must be in [1, ", kMaxBatch,
                                                   "] and at least min_batch"));
  }
  uint64_t largest = LargestBatch(options_.limit);
  if (options_.max_times_sampled > 0) {
    largest = std::min(largest, options_.max_items * options_.max_times_sampled);
  }
  if (LeastBatch(size) <= largest) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a batch of ", LeastBatch(size), " items may never be there: with samples_per_insert ",
                   options_.limit.samples_per_insert, " and the window [", options_.limit.min_diff, ", ",
                   options_.limit.max_diff, "] inserts may stop at ", largest, "; ask for at most ", largest,
                   ", set min_batch, or widen the window"));
}

bool Table::Run(WaitingInsert& insert) {
  if (!insert.begun) {
    insert.begun = true;
    if (insert.hooks.begin) {
      const absl::StatusOr<size_t> present = insert.hooks.begin();
      if (!present.ok()) {
        insert.status = present.status();
        return true;
      }
      insert.next = std::min(*present, insert.items.size());
    }
  }
  const size_t before = insert.next;
  while (insert.next < insert.items.size() && limiter_.MayInsert(store_.size())) {
    NewItem& item = insert.items[insert.next];
    insert.status = store_.FitsAlone(*item.trajectory);  // max_bytes may have changed while the call waited
    if (!insert.status.ok()) break;
    store_.Insert(item.priority, std::move(item.trajectory));
    limiter_.Inserted(1);
    limiter_.Credited(store_.TakeCredits());
    ++insert.next;
  }
  if (insert.next > before) {
    total_inserts_ += insert.next - before;
    last_insert_ = clock_->Now();
    if (last_inserter_ != insert.client) last_inserter_ = insert.client;
    if (insert.hooks.progress) insert.hooks.progress(insert.next);
  }
  return insert.next == insert.items.size() || !insert.status.ok();
}

uint64_t Table::Available() const {
  const uint64_t allowed = limiter_.SamplesAllowed(store_.size());
  return options_.max_times_sampled > 0 ? std::min(allowed, store_.unspent()) : allowed;
}

bool Table::Run(WaitingSample& sample) {
  const uint64_t available = Available();
  if (available < LeastBatch(sample.size)) return false;
  const auto n = static_cast<size_t>(std::min<uint64_t>(sample.size.batch, available));
  sample.result = Sample();
  Sample& result = *sample.result;
  result.items.reserve(n);
  for (size_t i = 0; i < n; ++i) result.items.push_back(store_.Draw());
  result.table_items = store_.size();
  result.mass = store_.mass();
  limiter_.Sampled(n);
  result.inserts = limiter_.inserts();
  result.samples = limiter_.samples();
  total_samples_ += n;
  last_sample_ = clock_->Now();
  if (last_sampler_ != sample.client) last_sampler_ = sample.client;
  return true;
}

void Table::Pump(Finished* finished) {
  for (bool progress = true; progress;) {
    progress = false;
    while (!inserts_.empty()) {
      WaitingInsert& head = *inserts_.front();
      const size_t before = head.next;
      const bool over = Run(head);
      progress = progress || over || head.next != before;
      if (!over) break;
      insert_wait_ += clock_->Now() - head.since;
      finished->inserts.push_back(std::move(inserts_.front()));
      inserts_.pop_front();
    }
    while (!samples_.empty() && Run(*samples_.front())) {
      progress = true;
      sample_wait_ += clock_->Now() - samples_.front()->since;
      finished->samples.push_back(std::move(samples_.front()));
      samples_.pop_front();
    }
  }
  finished->garbage = store_.TakeGarbage();
}

uint64_t Table::StartInsert(std::vector<NewItem> items, absl::string_view client, InsertHooks hooks,
                            InsertDone done) {
  Finished finished;
  auto insert = std::make_unique<WaitingInsert>();
  insert->items = std::move(items);
  insert->next = 0;
  insert->client = std::string(client);
  insert->hooks = std::move(hooks);
  insert->done = std::move(done);
  insert->begun = false;
  uint64_t ticket = 0;
  {
    absl::MutexLock lock(&mutex_);
    insert->status = stopped_ ? absl::CancelledError("it has been stopped") : CheckItems(insert->items);
    if (!insert->status.ok()) insert->status = Annotate(insert->status, absl::StrCat("table '", name_, "'"));
    if (!insert->status.ok() || (inserts_.empty() && Run(*insert))) {
      finished.inserts.push_back(std::move(insert));
    } else {
      ticket = insert->ticket = next_ticket_++;
      insert->since = clock_->Now();
      inserts_.push_back(std::move(insert));
    }
    Pump(&finished);
  }
  finished.Run();
  return ticket;
}

uint64_t Table::StartSample(const SampleSize& size, absl::string_view client, SampleDone done) {
  Finished finished;
  auto sample = std::make_unique<WaitingSample>();
  sample->size = size;
  sample->client = std::string(client);
  sample->done = std::move(done);
  uint64_t ticket = 0;
  {
    absl::MutexLock lock(&mutex_);
    const absl::Status status = stopped_ ? absl::CancelledError("it has been stopped") : CheckSize(size);
    if (!status.ok()) sample->result = Annotate(status, absl::StrCat("table '", name_, "'"));
    if (!status.ok() || (samples_.empty() && Run(*sample))) {
      finished.samples.push_back(std::move(sample));
    } else {
      ticket = sample->ticket = next_ticket_++;
      sample->since = clock_->Now();
      samples_.push_back(std::move(sample));
    }
    Pump(&finished);
  }
  finished.Run();
  return ticket;
}

absl::Status Table::Insert(std::vector<NewItem> items, absl::string_view client, absl::Time deadline,
                           size_t* inserted) {
  Waiter<std::pair<absl::Status, size_t>> waiter;
  const uint64_t ticket = StartInsert(std::move(items), client, {}, [&waiter](absl::Status status, size_t n) {
    absl::MutexLock lock(&waiter.mutex);
    waiter.result = {std::move(status), n};
    waiter.done = true;
  });
  auto [status, n] = Await(&waiter, clock_, deadline, [this, ticket] { Expire(ticket); });
  if (inserted != nullptr) *inserted = n;
  return status;
}

absl::StatusOr<Sample> Table::SampleItems(const SampleSize& size, absl::string_view client,
                                          absl::Time deadline) {
  Waiter<absl::StatusOr<Sample>> waiter;
  const uint64_t ticket = StartSample(size, client, [&waiter](absl::StatusOr<Sample> sample) {
    absl::MutexLock lock(&waiter.mutex);
    waiter.result = std::move(sample);
    waiter.done = true;
  });
  return Await(&waiter, clock_, deadline, [this, ticket] { Expire(ticket); });
}

std::string Table::WhyNoInsert() const {
  const std::string why = limiter_.WhyNoInsert(store_.size());
  if (why.empty()) return why;
  return absl::StrCat("table '", name_, "' ", why,
                      Last(last_sampler_, "sampled", last_sample_, clock_->Now()));
}

std::string Table::WhyNoSample(uint64_t batch) const {
  std::string why = limiter_.WhyNoSample(store_.size(), batch);
  if (why.empty() && Available() < batch) {
    why = absl::StrCat("gives no batch of ", batch, ": its items may be sampled ", store_.unspent(),
                       " times more (max_times_sampled ", options_.max_times_sampled, ")");
  }
  if (why.empty()) return why;
  const uint64_t removed = store_.removals().by_max_bytes;
  return absl::StrCat(
      "table '", name_, "' ", why,
      store_.size() < options_.limit.min_size && removed > 0
          ? absl::StrCat("; ", removed, " items have left because of max_bytes ", options_.max_bytes)
          : "",
      Last(last_inserter_, "inserted", last_insert_, clock_->Now()));
}

void Table::End(uint64_t ticket, const std::optional<absl::Status>& status) {
  Finished finished;
  {
    absl::MutexLock lock(&mutex_);
    const auto insert = std::find_if(inserts_.begin(), inserts_.end(),
                                     [&](const auto& waiting) { return waiting->ticket == ticket; });
    const auto sample = std::find_if(samples_.begin(), samples_.end(),
                                     [&](const auto& waiting) { return waiting->ticket == ticket; });
    if (insert != inserts_.end()) {
      std::string why = WhyNoInsert();
      if (why.empty()) why = absl::StrCat("table '", name_, "' was busy with earlier inserts");
      (*insert)->status = status.value_or(absl::DeadlineExceededError(why));
      insert_wait_ += clock_->Now() - (*insert)->since;
      finished.inserts.push_back(std::move(*insert));
      inserts_.erase(insert);
    } else if (sample != samples_.end()) {
      std::string why = WhyNoSample(LeastBatch((*sample)->size));
      if (why.empty()) why = absl::StrCat("table '", name_, "' was busy with earlier samples");
      (*sample)->result = status.value_or(absl::DeadlineExceededError(why));
      sample_wait_ += clock_->Now() - (*sample)->since;
      finished.samples.push_back(std::move(*sample));
      samples_.erase(sample);
    }
    Pump(&finished);
  }
  finished.Run();
}

void Table::Expire(uint64_t ticket) { End(ticket, std::nullopt); }
void Table::Cancel(uint64_t ticket, const absl::Status& status) { End(ticket, status); }

absl::StatusOr<uint64_t> Table::UpdatePriorities(absl::Span<const uint64_t> keys,
                                                 absl::Span<const double> priorities) {
  if (keys.size() != priorities.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("table '", name_, "': ", keys.size(), " keys and ", priorities.size(), " priorities"));
  }
  absl::MutexLock lock(&mutex_);
  for (size_t i = 0; i < keys.size(); ++i) {
    if (absl::Status status = store_.CheckPriority(priorities[i]); !status.ok()) {
      return Annotate(status, absl::StrCat("table '", name_, "', key ", keys[i]));
    }
  }
  const uint64_t changed = store_.Update(keys, priorities);
  updates_ += changed;
  missed_updates_ += keys.size() - changed;
  return changed;
}

absl::Status Table::SetLimits(const RateLimit& limit, uint64_t max_items, uint64_t max_bytes) {
  Finished finished;
  {
    absl::MutexLock lock(&mutex_);
    TableOptions options = options_;
    options.limit = limit;
    options.max_items = max_items;
    options.max_bytes = max_bytes;
    TANDEM_RETURN_IF_ERROR(CheckTableOptions(options));
    options_ = options;
    limiter_.SetLimit(limit);
    store_.SetBudgets(max_items, max_bytes);
    limiter_.Credited(store_.TakeCredits());
    for (auto it = samples_.begin(); it != samples_.end();) {
      const absl::Status status = CheckSize((*it)->size);
      if (status.ok()) {
        ++it;
        continue;
      }
      (*it)->result = Annotate(status, absl::StrCat("table '", name_, "'"));
      finished.samples.push_back(std::move(*it));
      it = samples_.erase(it);
    }
    Pump(&finished);
  }
  finished.Run();
  return absl::OkStatus();
}

void Table::Reset() {
  Finished finished;
  {
    absl::MutexLock lock(&mutex_);
    store_.Clear();
    limiter_.Restore(0, 0, 0);
    Pump(&finished);
  }
  finished.Run();
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
                    .why_no_sample = WhyNoSample(samples_.empty() ? 1 : LeastBatch(samples_.front()->size))};
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
  {
    absl::MutexLock lock(&mutex_);
    snapshot.options = options_;
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
    locked();
  }
  std::sort(snapshot.items.begin(), snapshot.items.end(),
            [](const ItemStore::Item& a, const ItemStore::Item& b) { return a.serial < b.serial; });
  return snapshot;
}

std::shared_ptr<const Signature> Table::signature() const {
  absl::MutexLock lock(&mutex_);
  return signature_;
}

void Table::Stop() {
  Finished finished;
  {
    absl::MutexLock lock(&mutex_);
    stopped_ = true;
    const absl::Status status = absl::CancelledError(absl::StrCat("table '", name_, "' has been stopped"));
    for (auto& insert : inserts_) {
      insert->status = status;
      finished.inserts.push_back(std::move(insert));
    }
    for (auto& sample : samples_) {
      sample->result = status;
      finished.samples.push_back(std::move(sample));
    }
    inserts_.clear();
    samples_.clear();
  }
  finished.Run();
}

}  // namespace tandem::replay
