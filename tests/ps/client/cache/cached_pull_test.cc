// SPDX-License-Identifier: Apache-2.0
// Tests clients with caches against servers, and compares the rows with the history of every row. A row
// counts its own updates, those of each worker in a separate number, so that a row tells how old it is.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/checkpoint/checkpoint_dir.h"
#include "ps/client/client.h"
#include "ps/table.h"
#include "tests/testing/ps_cluster.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::ps {
namespace {

using ::tandem::testing::PsCluster;
using ::tandem::testing::StatusIs;
using ::tandem::testing::TempDir;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::FloatNear;
using ::testing::HasSubstr;

constexpr uint32_t kDim = 4;

v1::TableConfig Table(uint32_t workers, v1::UpdateMode mode = Async()) {
  v1::TableConfig config = EmbeddingTable("t", kDim, Sgd(1.0f), Zeros());
  *config.mutable_update_mode() = mode;
  config.set_num_workers(workers);
  return config;
}

// Returns distinct ids; low ones are far more frequent.
std::vector<uint64_t> SomeIds(CounterRandom& random, uint64_t universe, size_t most) {
  std::vector<uint64_t> ids(1 + random.Below(most));
  for (uint64_t& id : ids) id = Mix64(random.Below(1 + random.Below(1 + random.Below(universe))));
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  for (size_t i = ids.size(); i > 1; --i) std::swap(ids[i - 1], ids[random.Below(i)]);
  return ids;
}

// The history of one server: for every row, the number of its updates by each worker after each update of the
// table.
class History {
 public:
  void Update(uint32_t worker, const std::vector<uint64_t>& ids) {
    ++version_;
    for (const uint64_t id : ids) updates_[{id, worker}].push_back(version_);
  }
  uint64_t version() const { return version_; }
  // Returns the counts of a row as of `version`.
  uint64_t CountAt(uint64_t id, uint32_t worker, uint64_t version) const {
    const auto found = updates_.find({id, worker});
    if (found == updates_.end()) return 0;
    return std::upper_bound(found->second.begin(), found->second.end(), version) - found->second.begin();
  }

 private:
  uint64_t version_ = 0;
  std::map<std::pair<uint64_t, uint32_t>, std::vector<uint64_t>> updates_;
};

struct Sequence {
  CacheOptions cache;
  uint32_t servers = 1;
  bool faults = false;
};

// Several workers take turns. Every row that a pull returns must be one that the servers had within the
// bounds, moved by the worker's own gradients.
void RunTurns(const Sequence& sequence, uint64_t seed, CacheStatistics* sum) {
  constexpr uint32_t kWorkers = 3;
  PsCluster cluster(sequence.servers);
  std::atomic<uint64_t> calls{seed};
  const auto injector = [&](absl::string_view method, int64_t) -> rpc::Fault {
    if (!sequence.faults || (!absl::StrContains(method, "Pull") && !absl::StrContains(method, "Push")))
      return {};
    switch (calls++ % 9) {
      case 0:
        return {.kind = rpc::Fault::Kind::kFailBefore};
      case 3:
        return {.kind = rpc::Fault::Kind::kFailAfter};
      case 5:
        return {.kind = rpc::Fault::Kind::kDuplicate};
      case 7:  // not retried: the call fails
        return {.kind = rpc::Fault::Kind::kFailBefore, .status = absl::InternalError("no more")};
      default:
        return {};
    }
  };
  struct Worker {
    std::unique_ptr<Client> client;
    uint64_t step = 0;
    // The newest version that a response to a pull has reported.
    uint64_t newest_reported = 0;
    std::map<uint64_t, std::vector<uint64_t>> pulled_at;  // by id: the table's versions at the pulls
  };
  std::vector<Worker> workers(kWorkers);
  for (uint32_t w = 0; w < kWorkers; ++w) {
    TANDEM_ASSERT_OK_AND_ASSIGN(workers[w].client, cluster.Connect(w, injector));
    TANDEM_ASSERT_OK(workers[w].client->CreateTable(Table(kWorkers)));
    TANDEM_ASSERT_OK(workers[w].client->SetCache("t", sequence.cache));
  }
  History history;
  CounterRandom random(seed, 1);
  uint64_t failed = 0, own_updates_seen = 0;
  for (int turn = 0; turn < 700; ++turn) {
    const auto w = static_cast<uint32_t>(random.Below(kWorkers));
    Worker& worker = workers[w];
    const std::vector<uint64_t> ids = SomeIds(random, 600, 40);
    std::vector<float> rows(ids.size() * kDim, -7);
    const uint64_t now = history.version();
    const absl::StatusOr<PullVersions> versions =
        worker.client->Pull(worker.step, false, {{.table = "t", .ids = ids, .rows = rows.data()}});
    if (versions.ok()) {
      const uint64_t oldest = worker.newest_reported > sequence.cache.max_age
                                  ? worker.newest_reported - sequence.cache.max_age
                                  : 0;
      for (size_t i = 0; i < ids.size(); ++i) {
        std::vector<uint64_t>& pulls = worker.pulled_at[ids[i]];
        // One copy may have served this many of the earlier pulls.
        const size_t uses = sequence.cache.max_uses;
        const uint64_t fetched = pulls.size() >= uses ? pulls[pulls.size() - uses] : 0;
        pulls.push_back(now);
        for (uint32_t other = 0; other < kWorkers; ++other) {
          const float count = rows[i * kDim + other];
          const auto least = history.CountAt(ids[i], other, std::max(oldest, fetched));
          const auto most = history.CountAt(ids[i], other, now);
          ASSERT_GE(count + 1e-3, least) << "turn " << turn << " version " << now;
          // Gradients whose push finally failed have moved the copy too.
          if (other != w || !sequence.faults) {
            ASSERT_LE(count - 1e-3, most) << "turn " << turn << " version " << now;
          }
          if (other == w) {
            own_updates_seen += most > 0 && count > static_cast<float>(most) - 0.01f ? 1 : 0;
          } else {
            ASSERT_EQ(count, std::round(count)) << "only the worker's own gradients move its copies";
          }
        }
      }
      for (const uint64_t version : (*versions)[0]) {
        EXPECT_LE(version, now);
        EXPECT_GE(version, oldest);
      }
      worker.newest_reported = now;
    } else {
      ++failed;
      ++worker.step;  // rows that do not exist take no gradients
      continue;
    }
    std::vector<float> gradients(ids.size() * kDim, 0);
    for (size_t i = 0; i < ids.size(); ++i) gradients[i * kDim + w] = -1;
    if (random.Below(3) > 0) {
      absl::Status pushed;
      do {  // a push that finally fails has not reached the server
        pushed =
            worker.client->Push(worker.step, {{.table = "t", .ids = ids, .gradients = gradients.data()}});
      } while (!pushed.ok() && sequence.servers == 1);
      if (pushed.ok()) history.Update(w, ids);
    }
    ++worker.step;
  }
  EXPECT_EQ(failed > 0, sequence.faults);
  EXPECT_GT(own_updates_seen, 1000);
  for (Worker& worker : workers) {
    TANDEM_ASSERT_OK_AND_ASSIGN(const CacheStatistics statistics, worker.client->CacheStatisticsOf("t"));
    sum->Add(statistics);
  }
  // A read that bypasses the caches returns the end of the history.
  const std::vector<uint64_t> ids = SomeIds(random, 600, 400);
  std::vector<float> rows(ids.size() * kDim);
  absl::Status read;
  do {
    read = workers[0].client->Pull(0, true, {{.table = "t", .ids = ids, .rows = rows.data()}}).status();
  } while (!read.ok());
  for (size_t i = 0; i < ids.size(); ++i) {
    for (uint32_t w = 0; w < kWorkers; ++w) {
      ASSERT_EQ(rows[i * kDim + w], history.CountAt(ids[i], w, history.version()));
    }
  }
}

TEST(CachedPulls, ReturnRowsThatTheServersHadWithinTheBounds) {
  const Sequence sequences[] = {
      {.cache = {.bytes = 1 << 20, .max_age = 0}},
      {.cache = {.bytes = 1 << 20, .max_uses = 1}},
      {.cache = {.bytes = 1 << 20, .max_uses = 5}, .servers = 3},
      {.cache = {.bytes = 1 << 20, .max_age = 25}, .servers = 2},
      {.cache = {.bytes = 20 << 10, .max_uses = 4, .max_age = 40}, .servers = 2},  // evicts
  };
  CacheStatistics sum;
  for (const Sequence& sequence : sequences) {
    for (uint64_t seed = 0; seed < 2; ++seed) {
      SCOPED_TRACE(absl::StrCat("max_uses ", sequence.cache.max_uses, ", max_age ", sequence.cache.max_age,
                                ", ", sequence.servers, " servers, seed ", seed));
      RunTurns(sequence, seed, &sum);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
  EXPECT_GT(sum.unchanged, 500);
  EXPECT_GT(sum.refreshed, 5000);
  EXPECT_GT(sum.locally_served, 5000);
  EXPECT_GT(sum.missed, 1000);
  EXPECT_GT(sum.evicted, 100);
  EXPECT_LT(sum.response_bytes, sum.plain_response_bytes);
}

TEST(CachedPulls, DoSoThoughCallsFailAreRetriedAndComeTwice) {
  CacheStatistics sum;
  for (uint64_t seed = 0; seed < 2; ++seed) {
    RunTurns({.cache = {.bytes = 20 << 10, .max_age = 10}, .faults = true}, seed, &sum);
    RunTurns({.cache = {.bytes = 1 << 20, .max_uses = 3}, .faults = true}, seed, &sum);
    if (::testing::Test::HasFatalFailure()) return;
  }
  EXPECT_GT(sum.locally_served, 5000);
}

// Workers in their own threads, with several pulls under way at the same time. Each worker adds to its own
// number of a row, so the test knows whose updates a row contains. Let a be the number of pushes that are
// acknowledged when a pull begins. Every row of a later pull contains each push that was acknowledged when at
// most a - max_age - workers were: its update is one of the first a - max_age, and the response to the
// earlier pull reported a version of at least a.
TEST(CachedPulls, ReturnRowsWithinTheBoundToManyThreads) {
  constexpr uint32_t kWorkers = kDim;
  constexpr uint64_t kUniverse = 60, kSteps = 250, kMaxAge = 12;
  PsCluster cluster(2);
  absl::Mutex mutex;
  uint64_t acknowledged = 0;
  // [id][worker]: for each push, the number of pushes acknowledged before it.
  std::vector<std::vector<std::vector<uint64_t>>> log(kUniverse,
                                                      std::vector<std::vector<uint64_t>>(kWorkers));
  std::vector<std::vector<std::atomic<uint64_t>>> begun(kUniverse);
  for (auto& row : begun) row = std::vector<std::atomic<uint64_t>>(kWorkers);
  const auto work = [&](uint32_t w) {
    TANDEM_ASSERT_OK_AND_ASSIGN(auto client, cluster.Connect(w));
    TANDEM_ASSERT_OK(client->CreateTable(Table(kWorkers)));
    TANDEM_ASSERT_OK(client->SetCache("t", {.bytes = 9 << 10, .max_uses = 60, .max_age = kMaxAge}));
    uint64_t newest_reported = 0;  // number of acknowledged pushes when the previous pull began
    CounterRandom random(11, w);
    for (uint64_t step = 0; step < kSteps; ++step) {
      std::vector<uint64_t> ids(1 + random.Below(20));
      for (uint64_t& id : ids) id = random.Below(1 + random.Below(kUniverse));
      std::sort(ids.begin(), ids.end());
      ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
      std::vector<std::vector<uint64_t>> least(ids.size(), std::vector<uint64_t>(kWorkers));
      {
        absl::MutexLock lock(&mutex);
        const uint64_t in_rows =
            newest_reported > kMaxAge + kWorkers ? newest_reported - kMaxAge - kWorkers : 0;
        newest_reported = acknowledged;
        for (size_t i = 0; i < ids.size(); ++i) {
          for (uint32_t other = 0; other < kWorkers; ++other) {
            const std::vector<uint64_t>& pushes = log[ids[i]][other];
            least[i][other] = std::upper_bound(pushes.begin(), pushes.end(), in_rows) - pushes.begin();
          }
        }
      }
      // Two pulls at the same time, as in a pipeline.
      std::vector<float> rows(ids.size() * kDim), again(ids.size() * kDim);
      absl::Notification first;
      absl::Status status;
      client->PullAsync(step, false, {{.table = "t", .ids = ids, .rows = again.data()}},
                        [&](absl::StatusOr<PullVersions> versions) {
                          status = versions.status();
                          first.Notify();
                        });
      TANDEM_ASSERT_OK(client->Pull(step, false, {{.table = "t", .ids = ids, .rows = rows.data()}}));
      first.WaitForNotification();
      TANDEM_ASSERT_OK(status);
      for (size_t i = 0; i < ids.size(); ++i) {
        for (uint32_t other = 0; other < kWorkers; ++other) {
          for (const float* const pulled : {rows.data(), again.data()}) {
            const float count = pulled[i * kDim + other];  // its own updates have moved the copy
            ASSERT_GE(count + 1e-3, least[i][other])
                << "id " << ids[i] << " worker " << other << " step " << step;
            ASSERT_LE(count - 1e-3, begun[ids[i]][other].load());
          }
        }
      }
      std::vector<float> gradients(ids.size() * kDim, 0);
      for (size_t i = 0; i < ids.size(); ++i) {
        gradients[i * kDim + w] = -1;
        ++begun[ids[i]][w];
      }
      TANDEM_ASSERT_OK(client->Push(step, {{.table = "t", .ids = ids, .gradients = gradients.data()}}));
      absl::MutexLock lock(&mutex);
      ++acknowledged;
      for (const uint64_t id : ids) log[id][w].push_back(acknowledged);
    }
    TANDEM_ASSERT_OK_AND_ASSIGN(const CacheStatistics statistics, client->CacheStatisticsOf("t"));
    EXPECT_GT(statistics.locally_served, 100);
    EXPECT_GT(statistics.refreshed, 100);
  };
  std::vector<std::thread> threads;
  for (uint32_t w = 0; w < kWorkers; ++w) threads.emplace_back(work, w);
  for (std::thread& thread : threads) thread.join();
}

// The sum of all pushed gradients equals the sum of all applied ones, whatever is deferred on the way.
TEST(HeldBackGradients, AllArriveExactlyOnce) {
  for (const v1::UpdateMode& mode : {Async(), Bounded(100)}) {
    constexpr uint32_t kWorkers = 3;
    PsCluster cluster(2);
    std::vector<std::map<uint64_t, std::vector<float>>> sums(kWorkers);
    const auto work = [&](uint32_t w) {
      std::atomic<uint64_t> calls{0};
      const auto injector = [&](absl::string_view method, int64_t) -> rpc::Fault {
        if (!absl::StrContains(method, "Push")) return {};
        switch (calls++ % 7) {
          case 0:
            return {.kind = rpc::Fault::Kind::kFailBefore};
          case 2:
            return {.kind = rpc::Fault::Kind::kFailAfter};
          case 4:
            return {.kind = rpc::Fault::Kind::kDuplicate};
          default:
            return {};
        }
      };
      TANDEM_ASSERT_OK_AND_ASSIGN(auto client, cluster.Connect(w, injector));
      TANDEM_ASSERT_OK(client->CreateTable(Table(kWorkers, mode)));
      TANDEM_ASSERT_OK(client->SetCache("t", {.bytes = 18 << 10, .max_age = 10, .push_bound = 5}));
      CounterRandom random(13, w);
      for (uint64_t step = 0; step < 150; ++step) {
        const std::vector<uint64_t> ids = SomeIds(random, 500, 50);
        std::vector<float> rows(ids.size() * kDim), gradients(ids.size() * kDim);
        TANDEM_ASSERT_OK_AND_ASSIGN(
            const PullVersions versions,
            client->Pull(step, false, {{.table = "t", .ids = ids, .rows = rows.data()}}));
        for (float& g : gradients) g = static_cast<float>(random.Below(16)) / 8 - 1;  // exact in any order
        for (size_t i = 0; i < gradients.size(); ++i) {
          sums[w].try_emplace(ids[i / kDim], kDim).first->second[i % kDim] += gradients[i];
        }
        TANDEM_ASSERT_OK(client->Push(
            step,
            {{.table = "t", .ids = ids, .gradients = gradients.data(), .pulled_versions = versions[0]}}));
        if (step == 70) {
          TANDEM_ASSERT_OK(client->PushDeferred());
        }
      }
      TANDEM_ASSERT_OK_AND_ASSIGN(const CacheStatistics statistics, client->CacheStatisticsOf("t"));
      EXPECT_GT(statistics.held_rows, 10);
      EXPECT_GT(statistics.held_gradients, 1000);
      EXPECT_GT(statistics.evicted, 0);
      if (w == 0) {  // it pushes explicitly; the others push in their destructors
        TANDEM_ASSERT_OK(client->SetCache("t", {}));
      }
    };
    std::vector<std::thread> threads;
    for (uint32_t w = 0; w < kWorkers; ++w) threads.emplace_back(work, w);
    for (std::thread& thread : threads) thread.join();
    std::map<uint64_t, std::vector<float>> total;
    for (const auto& worker : sums) {
      for (const auto& [id, sum] : worker) {
        for (uint32_t d = 0; d < kDim; ++d) total.try_emplace(id, kDim).first->second[d] += sum[d];
      }
    }
    TANDEM_ASSERT_OK_AND_ASSIGN(auto reader, cluster.Connect());
    TANDEM_ASSERT_OK(reader->CreateTable(Table(kWorkers, mode)));
    for (const auto& [id, sum] : total) {
      std::vector<float> row(kDim);
      const std::vector<uint64_t> ids = {id};
      TANDEM_ASSERT_OK(reader->Pull(0, true, {{.table = "t", .ids = ids, .rows = row.data()}}));
      for (uint32_t d = 0; d < kDim; ++d) ASSERT_EQ(row[d], -sum[d]) << id;
    }
    TANDEM_ASSERT_OK_AND_ASSIGN(auto tables, reader->ListTables());
    EXPECT_EQ(tables[0].statistics().missing_rows(), 0);
  }
}

class OneClient : public ::testing::Test {
 protected:
  void Connect(const CacheOptions& options, v1::UpdateMode mode = Async()) {
    TANDEM_ASSERT_OK_AND_ASSIGN(client_, cluster_.Connect());
    TANDEM_ASSERT_OK(client_->CreateTable(Table(1, mode)));
    TANDEM_ASSERT_OK(client_->SetCache("t", options));
  }
  // Returns the first number of each row.
  std::vector<float> Pull(uint64_t step, const std::vector<uint64_t>& ids, bool read_only = false) {
    std::vector<float> rows(ids.size() * kDim, -7), firsts;
    const absl::Status status =
        client_->Pull(step, read_only, {{.table = "t", .ids = ids, .rows = rows.data()}}).status();
    TANDEM_EXPECT_OK(status);
    for (size_t i = 0; i < ids.size(); ++i) firsts.push_back(rows[i * kDim]);
    return firsts;
  }
  void Push(uint64_t step, const std::vector<uint64_t>& ids) {
    const std::vector<float> gradients(ids.size() * kDim, -1);
    TANDEM_EXPECT_OK(client_->Push(step, {{.table = "t", .ids = ids, .gradients = gradients.data()}}));
  }
  // `missing`: the updates that a row may lack.
  void FollowItself(float missing) {
    Push(0, {1000});
    for (uint64_t step = 1; step < 100; ++step) {
      const std::vector<float> row = Pull(step, {1});
      // The third pull after the first one requests the row, and learns its age.
      if (step >= 4) {
        EXPECT_THAT(row, ElementsAre(FloatNear(static_cast<float>(step) - 1, missing + 1e-3f)));
      }
      Push(step, {1});
    }
    EXPECT_LT(Statistics().refreshed, 15);
  }
  CacheStatistics Statistics() { return client_->CacheStatisticsOf("t").value(); }

  PsCluster cluster_{2};
  std::unique_ptr<Client> client_;
};

TEST_F(OneClient, TheServersCountWhatTheyNeedNotSend) {
  Connect({.bytes = 1 << 20, .max_age = 1});
  Push(0, {1000});
  Pull(1, {1, 2, 3});
  Push(1, {1000});
  Push(2, {1000});
  Pull(2, {4});  // reports that the copies are two updates old
  Pull(3, {1, 2, 3, 4});
  TANDEM_ASSERT_OK_AND_ASSIGN(auto tables, client_->ListTables());
  EXPECT_EQ(tables[0].statistics().unchanged_rows(), 3);
  EXPECT_EQ(tables[0].statistics().unasked_rows(), 1);
  EXPECT_EQ(Statistics().unchanged, 3);
  EXPECT_EQ(Statistics().locally_served, 1);
  EXPECT_EQ(Statistics().missed, 4);
  EXPECT_EQ(Statistics().lookups, 8);
  EXPECT_LT(Statistics().response_bytes, 4 * kDim * sizeof(float) + 20);
}

TEST_F(OneClient, ReadOnlyPullsGoAroundTheCache) {
  Connect({.bytes = 1 << 20, .max_age = 100});
  Push(0, {1000});
  EXPECT_THAT(Pull(1, {1}), ElementsAre(0));
  Push(1, {1});
  EXPECT_THAT(Pull(2, {1}), ElementsAre(0));
  EXPECT_THAT(Pull(2, {1}, /*read_only=*/true), ElementsAre(1));
}

TEST_F(OneClient, CopiesAreNotUsedAfterACheckpointWasLoaded) {
  TempDir dir;
  Connect({.bytes = 1 << 20, .push_bound = 10});
  Pull(0, {1, 2, 3});  // creates the rows
  Push(0, {1, 2});
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string unfinished, BeginCheckpoint(dir.path(), 1));
  TANDEM_ASSERT_OK(client_->SaveCheckpoint(unfinished).status());
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string saved, CommitCheckpoint(unfinished, {}));
  for (uint64_t step = 1; step < 10; ++step) {
    Pull(step, {1, 2, 3});
    Push(step, {1, 2, 3});
  }
  TANDEM_ASSERT_OK(client_->PushDeferred());
  EXPECT_THAT(Pull(10, {1, 2, 3}, true), ElementsAre(10, 10, 9));
  Push(10, {1, 2, 3});  // deferred; dropped with the rows
  TANDEM_ASSERT_OK(client_->LoadCheckpoint(saved));
  EXPECT_THAT(Pull(1, {1, 2, 3}), ElementsAre(1, 1, 0));
  TANDEM_ASSERT_OK(client_->PushDeferred());
  EXPECT_THAT(Pull(1, {1, 2, 3}, true), ElementsAre(1, 1, 0));
}

TEST_F(OneClient, SeesItsOwnUpdatesInCopiesOnceItIsKnownHowTheyMoveARow) {
  Connect({.bytes = 1 << 20});
  FollowItself(0);
}

TEST_F(OneClient, SeesThemAlsoWhileTheyAreHeldBack) {
  Connect({.bytes = 1 << 20, .push_bound = 3});
  FollowItself(2);  // a row that is requested keeps its deferred gradients
  TANDEM_EXPECT_OK(client_->PushDeferred());
  EXPECT_THAT(Pull(100, {1}, true), ElementsAre(99));
}

TEST_F(OneClient, AModeThatTheCacheDoesNotSuitIsRefusedWhileThereIsOne) {
  Connect({.bytes = 1 << 20});
  EXPECT_THAT(client_->SetUpdateMode("t", Sync()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("synchronous")));
  TANDEM_EXPECT_OK(client_->SetUpdateMode("t", Bounded(3)));
  TANDEM_EXPECT_OK(client_->SetCache("t", {}));
  TANDEM_EXPECT_OK(client_->SetUpdateMode("t", Sync()));
  EXPECT_THAT(client_->SetCache("t", {.bytes = 1 << 20}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("synchronous")));
}

TEST_F(OneClient, AServerThatBecameSynchronousRefusesOldCopies) {
  Connect({.bytes = 1 << 20, .max_age = 100});
  Push(0, {1});
  Pull(1, {1});
  TANDEM_ASSERT_OK_AND_ASSIGN(auto other, cluster_.Connect());
  TANDEM_ASSERT_OK(other->SetUpdateMode("t", Sync()));
  std::vector<float> rows(kDim);
  const std::vector<uint64_t> ids = {1};
  EXPECT_THAT(
      client_->Pull(1, false, {{.table = "t", .ids = ids, .rows = rows.data()}}),
      StatusIs(absl::StatusCode::kFailedPrecondition, AllOf(HasSubstr("'t'"), HasSubstr("cache off"))));
}

TEST_F(OneClient, TablesWithoutACacheSayNothing) {
  Connect({});
  EXPECT_EQ(Statistics().capacity, 0);
  Pull(0, {1});
  EXPECT_EQ(Statistics().lookups, 0);
  EXPECT_THAT(client_->SetCache("no such", {}), StatusIs(absl::StatusCode::kNotFound));
}

// A server whose process dies and is restarted at the same address.
class MortalServer {
 public:
  MortalServer() { Restart(); }
  ~MortalServer() { server_->Stop(); }
  // Starts a new server with new rows. No call may be under way.
  void Restart() {
    if (server_ != nullptr) server_->Stop();
    server_ = std::make_unique<ParameterServer>(ParameterServerOptions{});
    service_ = server_->service();
  }
  std::unique_ptr<rpc::Channel> Channel() {
    rpc::Service front{.name = service_.name, .methods = {}};
    for (size_t m = 0; m < service_.methods.size(); ++m) {
      front.methods.push_back({service_.methods[m].name, service_.methods[m].right,
                               [this, m](std::shared_ptr<rpc::ServerCall> call) {
                                 service_.methods[m].handler(std::move(call));
                               }});
    }
    return rpc::ConnectLoopback(std::make_shared<const std::vector<rpc::Service>>(1, std::move(front)));
  }

 private:
  std::unique_ptr<ParameterServer> server_;
  rpc::Service service_;
};

TEST(CachedPulls, NoticeThatAServerStartedAnewEvenIfItsVersionsHaveCaughtUp) {
  for (const uint64_t updates : {3, 20, 40}) {  // after the restart; there were 20 before it
    MortalServer server;
    std::vector<std::unique_ptr<rpc::Channel>> channels;
    channels.push_back(server.Channel());
    TANDEM_ASSERT_OK_AND_ASSIGN(auto client, Client::Connect(std::move(channels), {}));
    TANDEM_ASSERT_OK(client->CreateTable(Table(1)));
    TANDEM_ASSERT_OK(client->SetCache("t", {.bytes = 1 << 20, .max_age = 100, .push_bound = 50}));
    const std::vector<uint64_t> ids = {1, 2, 3}, other = {1000};
    const std::vector<float> gradients(ids.size() * kDim, -1);
    std::vector<float> rows(ids.size() * kDim);
    const auto push = [&](uint64_t step, const std::vector<uint64_t>& pushed) {
      TANDEM_ASSERT_OK(client->Push(step, {{.table = "t", .ids = pushed, .gradients = gradients.data()}}));
    };
    const auto pull = [&](uint64_t step) {
      TANDEM_ASSERT_OK(client->Pull(step, false, {{.table = "t", .ids = ids, .rows = rows.data()}}));
    };
    pull(0);  // creates the rows
    for (uint64_t step = 0; step < 20; ++step) push(step, ids);
    pull(20);
    EXPECT_THAT(rows, Each(20));
    push(20, ids);  // deferred
    server.Restart();
    TANDEM_ASSERT_OK(client->CreateTable(Table(1)));
    for (uint64_t step = 21; step < 21 + updates; ++step) push(step, other);
    pull(100);  // reports the restart
    pull(101);
    EXPECT_THAT(rows, Each(0));
    // The deferred gradients are still valid.
    TANDEM_ASSERT_OK(client->PushDeferred());
    TANDEM_ASSERT_OK(client->Pull(102, true, {{.table = "t", .ids = ids, .rows = rows.data()}}));
    EXPECT_THAT(rows, Each(1));
  }
}

}  // namespace
}  // namespace tandem::ps
