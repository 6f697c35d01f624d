// SPDX-License-Identifier: Apache-2.0
#include "tests/cli/commands/exactly_once.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "base/timed_wait.h"
#include "ps/shard_map.h"
#include "tests/testing/processes/processes.h"

namespace tandem::cli {
namespace {

constexpr uint64_t kStepsBetweenPulls = 64;
constexpr size_t kIdsInAPull = size_t{1} << 15;

}  // namespace

std::vector<Mode> AllModes() {
  return {{"async", ps::Async()},
          {"bounded", ps::Bounded(100)},
          {"sync", ps::Sync()},
          {"gba", ps::Gba(1 << 20, 3)}};
}

ps::v1::TableConfig CountingTable(uint32_t dim, const ps::v1::UpdateMode& mode, uint32_t workers) {
  ps::v1::TableConfig config = ps::EmbeddingTable("t", dim, ps::Sgd(1.0f), ps::Zeros());
  *config.mutable_update_mode() = mode;
  config.set_num_workers(workers);
  return config;
}

std::vector<uint64_t> IdOnEachServer(uint64_t from, uint32_t servers) {
  const ps::ShardMap map = ps::ShardMap::Even(servers);
  std::vector<uint64_t> ids;
  for (uint32_t s = 0; s < servers; ++s, ++from) {
    while (map.OwnerOf(from) != s) ++from;
    ids.push_back(from);
  }
  return ids;
}

std::vector<uint64_t> SharedIds(uint32_t servers) { return IdOnEachServer(0, servers); }

std::vector<uint64_t> IdsOfPush(uint32_t worker, uint64_t step, uint32_t servers) {
  return IdOnEachServer((uint64_t{worker} << 40) + (step + 1) * 4096, servers);
}

absl::StatusOr<std::unique_ptr<ExactlyOnce>> ExactlyOnce::Start(Options options) {
  std::unique_ptr<ExactlyOnce> run(new ExactlyOnce(std::move(options)));
  const uint32_t workers = run->options_.workers;
  for (uint32_t w = 0; w < workers; ++w) {
    TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<ps::Client> client, run->options_.connect(w));
    TANDEM_RETURN_IF_ERROR(client->StartPushEpoch());
    TANDEM_RETURN_IF_ERROR(client->CreateTable(
        CountingTable(run->options_.dim, run->options_.mode, workers + run->options_.other_workers)));
    run->clients_.push_back(std::move(client));
  }
  {
    absl::MutexLock lock(&run->mutex_);
    run->begun_.resize(workers);
    run->in_flight_.resize(workers);
  }
  for (uint32_t w = 0; w < workers; ++w) run->threads_.emplace_back([r = run.get(), w] { r->Work(w); });
  return run;
}

ExactlyOnce::~ExactlyOnce() { End().IgnoreError(); }

uint64_t ExactlyOnce::acknowledged() const {
  absl::MutexLock lock(&mutex_);
  return acknowledged_;
}

bool ExactlyOnce::failed() const {
  absl::MutexLock lock(&mutex_);
  return !result_.ok();
}

bool ExactlyOnce::AwaitAcknowledged(uint64_t more) {
  absl::MutexLock lock(&mutex_);
  const uint64_t wanted = acknowledged_ + more;
  const auto there = [&] { return acknowledged_ >= wanted || !result_.ok(); };
  return tandem::AwaitFor(&mutex_, absl::Condition(&there), testing::kTestTimeout) && result_.ok();
}

int ExactlyOnce::AwaitInFlight(int count) {
  absl::MutexLock lock(&mutex_);
  const auto total = [&] { return std::accumulate(in_flight_.begin(), in_flight_.end(), 0); };
  const auto there = [&] { return total() >= count || !result_.ok(); };
  const bool in_time = tandem::AwaitFor(&mutex_, absl::Condition(&there), testing::kTestTimeout);
  return in_time && result_.ok() ? total() : -1;
}

bool ExactlyOnce::Begin(uint32_t worker, uint64_t step) {
  absl::MutexLock lock(&mutex_);
  const auto free = [&] { return in_flight_[worker] < options_.in_flight; };
  mutex_.Await(absl::Condition(&free));
  if (step >= end_ || !result_.ok()) return false;
  begun_[worker] = step + 1;
  ++in_flight_[worker];
  return true;
}

void ExactlyOnce::Finish(uint32_t worker, const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  if (status.ok()) ++acknowledged_;
  result_.Update(status);
  --in_flight_[worker];
}

void ExactlyOnce::Work(uint32_t worker) {
  ps::Client& client = *clients_[worker];
  const std::vector<uint64_t> shared = SharedIds(options_.servers);
  std::vector<float> rows(shared.size() * options_.dim);
  const std::vector<float> gradients(2 * shared.size() * options_.dim, -1.0f);
  for (uint64_t step = 0; Begin(worker, step); ++step) {
    std::vector<uint64_t> ids = IdsOfPush(worker, step, options_.servers);
    ids.insert(ids.end(), shared.begin(), shared.end());
    client.PushAsync(step, {{.table = "t", .ids = ids, .gradients = gradients.data()}}, {},
                     [this, worker](absl::Status status) { Finish(worker, status); });
    if ((step + 1) % kStepsBetweenPulls != 0) continue;
    const absl::Status pulled =
        client.Pull(step + 1, false, {{.table = "t", .ids = shared, .rows = rows.data()}}).status();
    absl::MutexLock lock(&mutex_);
    result_.Update(pulled);
  }
  absl::MutexLock lock(&mutex_);
  const auto none = [&] { return in_flight_[worker] == 0; };
  mutex_.Await(absl::Condition(&none));
}

absl::Status ExactlyOnce::End() {
  {
    // The workers that are behind catch up.
    absl::MutexLock lock(&mutex_);
    if (!begun_.empty()) end_ = std::min(end_, *std::max_element(begun_.begin(), begun_.end()));
  }
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  absl::MutexLock lock(&mutex_);
  return result_;
}

::testing::AssertionResult ExactlyOnce::EachPushCountsOnce(const std::vector<uint64_t>& others) {
  if (const absl::Status ended = End(); !ended.ok()) return ::testing::AssertionFailure() << ended;
  if (const absl::Status flushed = clients_[0]->Flush("t"); !flushed.ok()) {
    return ::testing::AssertionFailure() << flushed;
  }
  uint64_t steps, acknowledged;
  {
    absl::MutexLock lock(&mutex_);
    steps = end_;
    acknowledged = acknowledged_;
  }
  if (acknowledged != options_.workers * steps) {
    return ::testing::AssertionFailure() << acknowledged << " pushes were acknowledged, but "
                                         << options_.workers << " workers made " << steps << " steps";
  }
  std::vector<uint64_t> ids = SharedIds(options_.servers);
  for (uint32_t w = 0; w < options_.workers; ++w) {
    for (uint64_t step = 0; step < steps; ++step) {
      const std::vector<uint64_t> own = IdsOfPush(w, step, options_.servers);
      ids.insert(ids.end(), own.begin(), own.end());
    }
  }
  const size_t dim = options_.dim;
  std::vector<float> rows;
  uint64_t wrong = 0;
  std::string first;
  for (size_t from = 0; from < ids.size(); from += kIdsInAPull) {
    const std::vector<uint64_t> some(
        ids.begin() + static_cast<std::ptrdiff_t>(from),
        ids.begin() + static_cast<std::ptrdiff_t>(std::min(ids.size(), from + kIdsInAPull)));
    rows.assign(some.size() * dim, -1.0f);
    const absl::Status pulled =
        clients_[0]->Pull(0, true, {{.table = "t", .ids = some, .rows = rows.data()}}).status();
    if (!pulled.ok()) return ::testing::AssertionFailure() << pulled;
    for (size_t i = 0; i < some.size(); ++i) {
      const size_t at = from + i;
      const uint64_t added = at < others.size() ? others[at] : 0;
      const float wanted = at < options_.servers ? static_cast<float>(acknowledged + added) : 1.0f;
      if (rows[i * dim] == wanted && rows[i * dim + dim - 1] == wanted) continue;
      if (++wrong > 1) continue;
      const size_t push = (at - options_.servers) / options_.servers;
      first = absl::StrCat("id ", some[i], " is ", rows[i * dim], ", expected ", wanted,
                           at < options_.servers
                               ? std::string(" (shared)")
                               : absl::StrCat(" (worker ", push / steps, ", step ", push % steps, ")"),
                           " on server ", at % options_.servers);
    }
  }
  if (wrong == 0) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << wrong << " of " << ids.size() << " rows are wrong; the first: " << first << "; each worker made "
         << steps << " steps";
}

}  // namespace tandem::cli
