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

constexpr absl::Duration kShortestTick = absl::Milliseconds(10);
constexpr absl::Duration kLongestTick = absl::Seconds(1);

// The result of a call that another thread may finish.
template <typename Result>
struct Waiter {
  absl::Mutex mutex;
  bool done ABSL_GUARDED_BY(mutex) = false;
  Result result ABSL_GUARDED_BY(mutex);
};

// Blocks until the call `call` of `table` is over, and ends it at `deadline`.
template <typename Result>
Result Await(Waiter<Result>* waiter, Table* table, uint64_t call, Clock* clock, absl::Time deadline) {
  for (absl::Time now; now = clock->Now(), now < deadline;) {
    const absl::Time tick =
        table->tick_period() == absl::InfiniteDuration() ? deadline : now + table->tick_period();
    {
      absl::MutexLock lock(&waiter->mutex);
      if (clock->AwaitUntil(&waiter->mutex, absl::Condition(&waiter->done), std::min(tick, deadline))) {
        return std::move(waiter->result);
      }
    }
    if (tick >= deadline) break;
    table->Tick();
  }
  table->Expire(call);
  absl::MutexLock lock(&waiter->mutex);
  waiter->mutex.Await(absl::Condition(&waiter->done));
  return std::move(waiter->result);
}

absl::Duration TickPeriodOf(const TableOptions& options) {
  absl::Duration shortest = absl::InfiniteDuration();
  if (options.staleness.kind == StalenessKind::kPace) shortest = options.staleness.lease;
  if (options.ttl > absl::ZeroDuration()) shortest = std::min(shortest, options.ttl);
  if (shortest == absl::InfiniteDuration()) return shortest;
  return std::clamp(shortest / 4, kShortestTick, kLongestTick);
}

std::unique_ptr<Pace> PaceOf(const TableOptions& options, const VersionClock* versions, absl::Time now) {
  if (options.staleness.kind != StalenessKind::kPace) return nullptr;
  // Tickets of an earlier process must not be taken for new ones.
  return std::make_unique<Pace>(options.staleness, versions,
                                static_cast<uint64_t>(std::max<int64_t>(absl::ToUnixNanos(now), 0)));
}

// Moves the waiting call `call` out of the list. Returns nullptr if it is not there.
template <typename Waiting>
std::unique_ptr<Waiting> Take(std::deque<std::unique_ptr<Waiting>>* list, uint64_t call) {
  const auto found =
      std::find_if(list->begin(), list->end(), [&](const auto& waiting) { return waiting->call == call; });
  if (found == list->end()) return nullptr;
  std::unique_ptr<Waiting> taken = std::move(*found);
  list->erase(found);
  return taken;
}

}  // namespace

struct Table::Finished {
  std::vector<std::unique_ptr<WaitingInsert>> inserts;
  std::vector<std::unique_ptr<WaitingSample>> samples;
  std::vector<std::unique_ptr<WaitingAdmit>> admits;
  std::vector<std::shared_ptr<const Trajectory>> garbage;

  // Finishes the calls. To be called without the table's lock.
  void Run() {
    for (auto& insert : inserts) std::move(insert->done)(std::move(insert->status), insert->next);
    for (auto& sample : samples) std::move(sample->done)(std::move(sample->result));
    for (auto& admit : admits) std::move(admit->done)(std::move(admit->result));
  }
};

absl::StatusOr<std::shared_ptr<Table>> Table::Create(const TableOptions& options, Clock* clock,
                                                     uint64_t first_serial) {
  TANDEM_RETURN_IF_ERROR(CheckTableOptions(options));
  std::shared_ptr<Table> table(new Table(options, options, clock, first_serial));
  if (!options.columns.empty()) {
    TANDEM_ASSIGN_OR_RETURN(auto signature, Signature::Make(options.columns));
    absl::MutexLock lock(&table->mutex_);
    table->signature_ = std::move(signature);
  }
  return table;
}

Table::Table(const TableOptions& options, const TableOptions& created, Clock* clock, uint64_t first_serial)
    : created_(created),
      clock_(clock),
      first_serial_(first_serial),
      tick_period_(TickPeriodOf(options)),
      options_(options),
      store_(options, first_serial),
      limiter_(options.limit),
      pace_(PaceOf(options, &versions_, clock->Now())) {}

Table::~Table() { Stop(); }

void Table::AfterRemovals() {
  // Samples that no item can give any more count as taken, or the table would wait for them for ever.
  if (options_.max_times_sampled > 0 && store_.TakeRemoved()) limiter_.LimitTo(store_.unspent());
  if (pace_ == nullptr || !store_.has_left_tickets()) return;
  for (const uint64_t ticket : store_.TakeLeftTickets()) pace_->Left(ticket);
}

void Table::RemoveOld() {
  if (tick_period_ == absl::InfiniteDuration()) return;
  const absl::Time now = clock_->Now();
  store_.RemoveExpired(now);
  AfterRemovals();  // before RemoveTooOld, or pace_ would return a slot that is free
  if (pace_ == nullptr) return;
  pace_->Expire(now);
  RemoveTooOld();
}

void Table::RemoveTooOld() {
  while (const std::optional<uint32_t> slot = pace_->TooOld()) {
    store_.RemoveStale(*slot);
    AfterRemovals();
  }
}

absl::Status Table::InsertOne(NewItem item) {
  if (pace_ != nullptr) TANDEM_RETURN_IF_ERROR(pace_->Check(item.ticket, item.trajectory->min_version));
  const absl::Time now = options_.ttl > absl::ZeroDuration() ? clock_->Now() : absl::InfinitePast();
  const uint64_t ticket = pace_ == nullptr ? 0 : item.ticket;
  const uint32_t slot = store_.Insert(item.priority, std::move(item.trajectory), ticket, now);
  limiter_.Inserted(1);
  AfterRemovals();
  if (pace_ != nullptr) pace_->Place(ticket, slot);
  ++total_inserts_;
  return absl::OkStatus();
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
  absl::Status left_out;
  while (insert.next < insert.items.size() && (pace_ != nullptr || limiter_.MayInsert(store_.size()))) {
    NewItem& item = insert.items[insert.next];
    insert.status = store_.FitsAlone(*item.trajectory);  // max_bytes may have changed while the call waited
    if (!insert.status.ok()) break;
    left_out.Update(InsertOne(std::move(item)));
    ++insert.next;
  }
  if (insert.next > before) {
    last_insert_ = clock_->Now();
    if (last_inserter_ != insert.client) last_inserter_ = insert.client;
    if (insert.hooks.progress) insert.hooks.progress(insert.next);
  }
  if (!left_out.ok()) insert.status.Update(Annotate(left_out, absl::StrCat("table '", name(), "'")));
  return insert.next == insert.items.size() || !insert.status.ok();
}

bool Table::Run(WaitingAdmit& admit) {
  if (AnswerGranted(admit)) return true;
  const uint64_t admissible = pace_->Admissible();
  // While a sample waits and no rollout runs, only a new rollout lets the learner go on: as many tickets as
  // fit are granted.
  const bool learner_waits = !samples_.empty() && pace_->running() == 0;
  if (admissible < (learner_waits ? 1 : admit.request.count)) return false;
  AdmitRequest request = admit.request;
  request.count = static_cast<uint32_t>(std::min<uint64_t>(admissible, request.count));
  admit.result = pace_->Admit(request, clock_->Now());
  return true;
}

bool Table::AnswerGranted(WaitingAdmit& admit) {
  // Checked again when its turn comes: the actor may have asked for other tickets meanwhile.
  if (absl::Status status = CheckAdmit(admit.request); !status.ok()) {
    admit.result = Annotate(status, absl::StrCat("table '", name(), "'"));
    return true;
  }
  std::vector<Ticket> granted = pace_->Granted(admit.request);
  if (granted.empty()) return false;
  admit.result = std::move(granted);
  return true;
}

void Table::Draw(size_t n, std::vector<SampledItem>* items) {
  if (pace_ == nullptr) {
    store_.Draw(n, items);
    limiter_.Sampled(n);
  }
  for (size_t i = 0; pace_ != nullptr && i < n; ++i) {
    // Each sample may make other items too old; SamplesAllowed has taken that into account.
    RemoveTooOld();
    items->push_back(store_.DrawFrom(pace_->TakeNext()));
    limiter_.Sampled(1);
  }
  AfterRemovals();
  if (versions_.commits() == 0) return;
  for (const SampledItem& item : *items) {
    const int64_t lag = std::max<int64_t>(versions_.head().version - item.trajectory->min_version, 0);
    ++lags_.lags[std::min<size_t>(static_cast<size_t>(lag), StalenessInfo::kLags - 1)];
    lags_.largest_lag = std::max(lags_.largest_lag, lag);
  }
}

uint64_t Table::Available() const {
  const uint64_t allowed = limiter_.SamplesAllowed(store_.size());
  if (pace_ != nullptr) return std::min(allowed, pace_->SamplesAllowed());
  return options_.max_times_sampled > 0 ? std::min(allowed, store_.unspent()) : allowed;
}

bool Table::Run(WaitingSample& sample) {
  RemoveOld();
  const uint64_t available = Available();
  if (available < sample.size.least()) return false;
  const absl::StatusOr<uint64_t> n = Fitting(std::min<uint64_t>(sample.size.batch, available), sample.size);
  if (!n.ok()) {
    sample.result = Annotate(n.status(), absl::StrCat("table '", name(), "'"));
    return true;
  }
  sample.result = Sample();
  Sample& result = *sample.result;
  result.table_items = store_.size();
  result.mass = store_.mass();
  result.items.reserve(*n);
  Draw(*n, &result.items);
  if (versions_.commits() > 0) result.committed_version = versions_.head().version;
  result.inserts = limiter_.inserts();
  result.samples = limiter_.samples();
  total_samples_ += *n;
  short_batch_ = 0;
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
    while (!admits_.empty() && Run(*admits_.front())) {
      progress = true;
      admit_wait_ += clock_->Now() - admits_.front()->since;
      finished->admits.push_back(std::move(admits_.front()));
      admits_.pop_front();
    }
  }
  finished->garbage = store_.TakeGarbage();
}

uint64_t Table::StartInsert(std::vector<NewItem> items, absl::string_view client, InsertHooks hooks,
                            InsertDone done) {
  Finished finished;
  auto insert = std::make_unique<WaitingInsert>();
  insert->items = std::move(items);
  insert->client = std::string(client);
  insert->hooks = std::move(hooks);
  insert->done = std::move(done);
  uint64_t call = 0;
  {
    absl::MutexLock lock(&mutex_);
    RemoveOld();
    insert->status = stopped_.ok() ? CheckItems(insert->items) : stopped_;
    if (!insert->status.ok()) insert->status = Annotate(insert->status, absl::StrCat("table '", name(), "'"));
    if (!insert->status.ok() || (inserts_.empty() && Run(*insert))) {
      finished.inserts.push_back(std::move(insert));
    } else {
      call = insert->call = next_call_++;
      insert->since = clock_->Now();
      inserts_.push_back(std::move(insert));
    }
    Pump(&finished);
  }
  finished.Run();
  return call;
}

uint64_t Table::StartSample(const SampleSize& size, absl::string_view client, SampleDone done) {
  Finished finished;
  auto sample = std::make_unique<WaitingSample>();
  sample->size = size;
  sample->client = std::string(client);
  sample->done = std::move(done);
  uint64_t call = 0;
  {
    absl::MutexLock lock(&mutex_);
    RemoveOld();
    const absl::Status status = stopped_.ok() ? CheckSize(size) : stopped_;
    if (!status.ok()) sample->result = Annotate(status, absl::StrCat("table '", name(), "'"));
    if (!status.ok() || (samples_.empty() && Run(*sample))) {
      finished.samples.push_back(std::move(sample));
    } else {
      call = sample->call = next_call_++;
      short_batch_ = size.least();
      sample->since = clock_->Now();
      samples_.push_back(std::move(sample));
    }
    Pump(&finished);
  }
  finished.Run();
  return call;
}

uint64_t Table::StartAdmit(const AdmitRequest& request, AdmitDone done) {
  Finished finished;
  auto admit = std::make_unique<WaitingAdmit>();
  admit->request = request;
  admit->done = std::move(done);
  uint64_t call = 0;
  {
    absl::MutexLock lock(&mutex_);
    RemoveOld();
    if (!stopped_.ok()) admit->result = Annotate(stopped_, absl::StrCat("table '", name(), "'"));
    // A repeated request does not wait behind others for the tickets that it has been granted.
    if (!stopped_.ok() || AnswerGranted(*admit) || (admits_.empty() && Run(*admit))) {
      finished.admits.push_back(std::move(admit));
    } else {
      call = admit->call = next_call_++;
      admit->since = clock_->Now();
      admits_.push_back(std::move(admit));
    }
    Pump(&finished);  // CheckAdmit may have ended tickets of an earlier incarnation
  }
  finished.Run();
  return call;
}

absl::Status Table::Insert(std::vector<NewItem> items, absl::string_view client, absl::Time deadline,
                           size_t* inserted) {
  Waiter<std::pair<absl::Status, size_t>> waiter;
  const uint64_t call = StartInsert(std::move(items), client, {}, [&waiter](absl::Status status, size_t n) {
    absl::MutexLock lock(&waiter.mutex);
    waiter.result = {std::move(status), n};
    waiter.done = true;
  });
  auto [status, n] = Await(&waiter, this, call, clock_, deadline);
  if (inserted != nullptr) *inserted = n;
  return status;
}

absl::StatusOr<Sample> Table::SampleItems(const SampleSize& size, absl::string_view client,
                                          absl::Time deadline) {
  Waiter<absl::StatusOr<Sample>> waiter;
  const uint64_t call = StartSample(size, client, [&waiter](absl::StatusOr<Sample> sample) {
    absl::MutexLock lock(&waiter.mutex);
    waiter.result = std::move(sample);
    waiter.done = true;
  });
  return Await(&waiter, this, call, clock_, deadline);
}

absl::StatusOr<std::vector<Ticket>> Table::Admit(const AdmitRequest& request, absl::Time deadline) {
  Waiter<absl::StatusOr<std::vector<Ticket>>> waiter;
  const uint64_t call = StartAdmit(request, [&waiter](absl::StatusOr<std::vector<Ticket>> tickets) {
    absl::MutexLock lock(&waiter.mutex);
    waiter.result = std::move(tickets);
    waiter.done = true;
  });
  return Await(&waiter, this, call, clock_, deadline);
}

uint64_t Table::Renew(absl::Span<const uint64_t> tickets) {
  absl::MutexLock lock(&mutex_);
  return pace_ == nullptr ? 0 : pace_->Renew(tickets, clock_->Now());
}

uint64_t Table::ReturnTickets(absl::Span<const uint64_t> tickets) {
  Finished finished;
  uint64_t in_use = 0;
  {
    absl::MutexLock lock(&mutex_);
    if (pace_ != nullptr) in_use = pace_->Return(tickets);
    Pump(&finished);
  }
  finished.Run();
  return in_use;
}

absl::Status Table::Commit(const CommittedVersion& version) {
  Finished finished;
  {
    absl::MutexLock lock(&mutex_);
    uint64_t sampled = pace_ == nullptr ? total_samples_ : pace_->sampled();
    const uint64_t per_commit =
        pace_ == nullptr ? 0 : uint64_t{options_.staleness.batch} * options_.staleness.every;
    if (absl::Status status = versions_.Commit(version, &sampled, per_commit); !status.ok()) {
      return Annotate(status, absl::StrCat("table '", name(), "'"));
    }
    if (pace_ != nullptr) pace_->set_sampled(sampled);
    store_.RemoveOlderVersions(version.version - options_.staleness.max_lag);
    AfterRemovals();
    RemoveOld();
    Pump(&finished);
  }
  finished.Run();
  return absl::OkStatus();
}

void Table::Tick() {
  Finished finished;
  {
    absl::MutexLock lock(&mutex_);
    RemoveOld();
    Pump(&finished);
  }
  finished.Run();
}

void Table::End(uint64_t call, const std::optional<absl::Status>& status) {
  Finished finished;
  {
    absl::MutexLock lock(&mutex_);
    const absl::Time now = clock_->Now();
    const auto reason = [&](const std::string& why, absl::string_view busy) {
      return status.value_or(absl::DeadlineExceededError(
          why.empty() ? absl::StrCat("table '", name(), "' was busy with earlier ", busy) : why));
    };
    if (auto insert = Take(&inserts_, call)) {
      insert->status = reason(WhyNoInsert(), "inserts");
      insert_wait_ += now - insert->since;
      finished.inserts.push_back(std::move(insert));
    } else if (auto sample = Take(&samples_, call)) {
      sample->result = reason(WhyNoSample(sample->size.least()), "samples");
      sample_wait_ += now - sample->since;
      finished.samples.push_back(std::move(sample));
    } else if (auto admit = Take(&admits_, call)) {
      admit->result = reason(WhyNotAdmitted(admit->request.count), "rollouts");
      admit_wait_ += now - admit->since;
      finished.admits.push_back(std::move(admit));
    }
    Pump(&finished);
  }
  finished.Run();
}

void Table::Expire(uint64_t call) { End(call, std::nullopt); }
void Table::Cancel(uint64_t call, const absl::Status& status) { End(call, status); }

absl::StatusOr<uint64_t> Table::UpdatePriorities(absl::Span<const uint64_t> keys,
                                                 absl::Span<const double> priorities) {
  if (keys.size() != priorities.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("table '", name(), "': ", keys.size(), " keys and ", priorities.size(), " priorities"));
  }
  absl::MutexLock lock(&mutex_);
  for (size_t i = 0; i < keys.size(); ++i) {
    if (absl::Status status = store_.CheckPriority(priorities[i]); !status.ok()) {
      return Annotate(status, absl::StrCat("table '", name(), "', key ", keys[i]));
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
    AfterRemovals();
    for (auto it = samples_.begin(); it != samples_.end();) {
      const absl::Status status = CheckSize((*it)->size);
      if (status.ok()) {
        ++it;
        continue;
      }
      (*it)->result = Annotate(status, absl::StrCat("table '", name(), "'"));
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
    store_.TakeLeftTickets();
    limiter_.Restore(0, 0, 0);
    versions_ = VersionClock();
    if (pace_ != nullptr) pace_->Clear();
    Pump(&finished);
  }
  finished.Run();
}

void Table::Stop(absl::Status why) {
  Finished finished;
  {
    absl::MutexLock lock(&mutex_);
    stopped_ = std::move(why);
    const absl::Status status = Annotate(stopped_, absl::StrCat("table '", name(), "'"));
    for (auto& insert : inserts_) {
      insert->status = status;
      finished.inserts.push_back(std::move(insert));
    }
    for (auto& sample : samples_) {
      sample->result = status;
      finished.samples.push_back(std::move(sample));
    }
    for (auto& admit : admits_) {
      admit->result = status;
      finished.admits.push_back(std::move(admit));
    }
    inserts_.clear();
    samples_.clear();
    admits_.clear();
  }
  finished.Run();
}

}  // namespace tandem::replay
