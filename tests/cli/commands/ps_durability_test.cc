// SPDX-License-Identifier: Apache-2.0
// Real servers are killed while workers push, and come back with their logs. Each push counts exactly once.

#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "base/random.h"
#include "base/status.h"
#include "collectives/store/store_server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/host/port_reservation.h"
#include "ps/client/client.h"
#include "ps/shard_map.h"
#include "ps/table.h"
#include "rpc/channel.h"
#include "rpc/connect.h"
#include "tandem/v1/durability.pb.h"
#include "tests/testing/processes/tandem_process.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::cli {
namespace {

using ::testing::HasSubstr;
using testing::kTestTimeout;
using testing::TandemProcess;

constexpr uint32_t kServers = 2;
constexpr uint32_t kWorkers = 2;
constexpr int kInFlight = 8;
constexpr uint32_t kDim = 32;
constexpr uint64_t kStepsBetweenKills = 100;  // of each worker
constexpr uint64_t kStepsBetweenPulls = 64;

// The number of servers killed, over all modes. TANDEM_DURABILITY_KILLS=200 is the long form.
int Kills() {
  const char* const text = std::getenv("TANDEM_DURABILITY_KILLS");
  return text == nullptr ? 20 : std::atoi(text);
}

// Servers whose logs are in one directory, at ports that stay theirs.
class DurableServers {
 public:
  explicit DurableServers(std::vector<std::string> more = {}) : more_(std::move(more)) {
    absl::StatusOr<std::unique_ptr<collectives::StoreServer>> store =
        collectives::StoreServer::Start("127.0.0.1:0");
    TANDEM_CHECK(store.ok());
    store_ = *std::move(store);
    for (uint32_t s = 0; s < kServers; ++s) {
      absl::StatusOr<std::unique_ptr<launcher::PortReservation>> port = launcher::PortReservation::Keep(0);
      TANDEM_CHECK(port.ok());
      ports_.push_back(*std::move(port));
      processes_.emplace_back();
      Start(s);
    }
  }
  void Start(uint32_t s) {
    std::vector<std::string> args = {"ps",
                                     "--index",
                                     absl::StrCat(s),
                                     "--num-servers",
                                     absl::StrCat(kServers),
                                     "--listen",
                                     absl::StrCat("127.0.0.1:", ports_[s]->port()),
                                     "--wal-dir",
                                     directory_.File(absl::StrCat(s)),
                                     "--lease",
                                     "600"};
    args.insert(args.end(), more_.begin(), more_.end());
    processes_[s] = std::make_unique<TandemProcess>(
        args,
        std::map<std::string, std::string>{{"TANDEM_STORE", absl::StrCat("127.0.0.1:", store_->port())}});
  }
  void Kill(uint32_t s) {
    processes_[s]->Signal(SIGKILL);
    EXPECT_EQ(processes_[s]->Wait(), 128 + SIGKILL) << processes_[s]->err();
  }
  absl::StatusOr<std::unique_ptr<ps::Client>> Connect(uint32_t worker) {
    std::vector<std::unique_ptr<rpc::Channel>> channels;
    for (const auto& port : ports_) {
      TANDEM_ASSIGN_OR_RETURN(auto channel, rpc::Connect(absl::StrCat("127.0.0.1:", port->port()), {}));
      channels.push_back(std::move(channel));
    }
    return ps::Client::Connect(std::move(channels), {.worker = worker, .timeout = 2 * kTestTimeout});
  }
  absl::StatusOr<v1::DurabilityInfo> Info(uint32_t s) {
    TANDEM_ASSIGN_OR_RETURN(auto channel, rpc::ConnectGrpc(absl::StrCat("127.0.0.1:", ports_[s]->port())));
    v1::DurabilityInfo info;
    TANDEM_RETURN_IF_ERROR(rpc::CallProto(*channel, "/tandem.v1.Durability/GetDurability",
                                          v1::GetDurabilityRequest(), &info,
                                          {.timeout = kTestTimeout, .idempotent = true}));
    return info;
  }
  // Blocks until the server serves; false after kTestTimeout.
  bool AwaitServing(uint32_t s) {
    const absl::Time deadline = absl::Now() + kTestTimeout;
    while (!Info(s).ok()) {
      if (absl::Now() > deadline) return false;
    }
    return true;
  }
  TandemProcess& process(uint32_t s) { return *processes_[s]; }

 private:
  const std::vector<std::string> more_;
  testing::TempDir directory_;
  std::unique_ptr<collectives::StoreServer> store_;
  std::vector<std::unique_ptr<launcher::PortReservation>> ports_;
  std::vector<std::unique_ptr<TandemProcess>> processes_;
};

// Ids of which the first lies on server 0, the second on server 1, and so on: the shared rows, and the
// private ones of each push.
class Ids {
 public:
  static std::vector<uint64_t> Shared() { return Next(0); }
  static std::vector<uint64_t> Private(uint32_t worker, uint64_t step) {
    return Next((uint64_t{worker} << 40) + (step + 1) * 4096);
  }

 private:
  static std::vector<uint64_t> Next(uint64_t from) {
    const ps::ShardMap map = ps::ShardMap::Even(kServers);
    std::vector<uint64_t> ids;
    for (uint32_t s = 0; s < kServers; ++s, ++from) {
      while (map.OwnerOf(from) != s) ++from;
      ids.push_back(from);
    }
    return ids;
  }
};

// Pushes with kInFlight pushes under way, until `over` returns true for a number of steps, or a push fails.
// `acknowledged` counts all workers' pushes; `steps` gets the number of this worker's steps.
absl::Status Push(ps::Client& client, uint32_t worker, const std::function<bool(uint64_t steps)>& over,
                  std::atomic<uint64_t>* acknowledged, uint64_t* steps) {
  absl::Mutex mutex;
  int in_flight = 0;
  absl::Status result;
  const auto await = absl::MakeCleanup([&] {
    absl::MutexLock lock(&mutex);
    mutex.Await(absl::Condition(
        +[](int* count) { return *count == 0; }, &in_flight));
  });
  for (uint64_t& step = *steps; !over(step); ++step) {
    const std::vector<uint64_t> shared = Ids::Shared();
    if (step % kStepsBetweenPulls == 0) {
      float rows[kServers * kDim];
      TANDEM_RETURN_IF_ERROR(
          client.Pull(step, false, {{.table = "t", .ids = shared, .rows = rows}}).status());
    }
    {
      absl::MutexLock lock(&mutex);
      mutex.Await(absl::Condition(
          +[](int* count) { return *count < kInFlight; }, &in_flight));
      if (!result.ok()) break;
      ++in_flight;
    }
    std::vector<uint64_t> ids = Ids::Private(worker, step);
    ids.insert(ids.end(), shared.begin(), shared.end());
    const std::vector<float> gradients(ids.size() * kDim, -1.0f);
    client.PushAsync(step, {{.table = "t", .ids = ids, .gradients = gradients.data()}}, {},
                     [&, acknowledged](absl::Status status) {
                       if (status.ok()) ++*acknowledged;
                       absl::MutexLock lock(&mutex);
                       result.Update(status);
                       --in_flight;
                     });
  }
  absl::MutexLock lock(&mutex);
  mutex.Await(absl::Condition(
      +[](int* count) { return *count == 0; }, &in_flight));
  return result;
}

// Lets all workers end at the same step, which is known only when they are to end. Thread-safe.
class Pace {
 public:
  // Returns whether worker `w` shall end before `step`; otherwise the worker begins the step.
  bool IsOver(uint32_t w, uint64_t step) {
    absl::MutexLock lock(&mutex_);
    if (step >= end_) return true;
    begun_[w] = step + 1;
    return false;
  }
  // Ends the workers at the furthest step that one of them has begun: the others catch up. Returns the number
  // of steps.
  uint64_t End() {
    absl::MutexLock lock(&mutex_);
    end_ = std::min(end_, *std::max_element(begun_.begin(), begun_.end()));
    return end_;
  }

 private:
  absl::Mutex mutex_;
  uint64_t end_ = ~uint64_t{0};
  std::vector<uint64_t> begun_ = std::vector<uint64_t>(kWorkers);
};

struct Mode {
  const char* name;
  v1::UpdateMode mode;
};

class PsDurabilityTest : public ::testing::TestWithParam<int> {
 protected:
  static Mode mode() {
    const std::vector<Mode> modes = {{"async", ps::Async()},
                                     {"bounded", ps::Bounded(100)},
                                     {"sync", ps::Sync()},
                                     {"gba", ps::Gba(1 << 20, 3)}};
    return modes[static_cast<size_t>(GetParam())];
  }
};

TEST_P(PsDurabilityTest, EachPushCountsOnceWhileServersAreKilled) {
  const int kills = (Kills() + 3) / 4;
  DurableServers servers({"--wal-snapshot", "64KiB", "--wal-sync", GetParam() % 2 == 0 ? "always" : "never"});
  std::vector<std::unique_ptr<ps::Client>> clients;
  for (uint32_t w = 0; w < kWorkers; ++w) {
    TANDEM_ASSERT_OK_AND_ASSIGN(clients.emplace_back(), servers.Connect(w));
    TANDEM_ASSERT_OK(clients[w]->StartPushEpoch());
    v1::TableConfig config = ps::EmbeddingTable("t", kDim, ps::Sgd(1.0f), ps::Zeros());
    *config.mutable_update_mode() = mode().mode;
    config.set_num_workers(kWorkers);
    TANDEM_ASSERT_OK(clients[w]->CreateTable(config));
  }
  std::atomic<uint64_t> acknowledged{0};
  Pace pace;
  std::vector<uint64_t> steps(kWorkers);
  std::vector<absl::Status> results(kWorkers);
  std::atomic<int> failed{0};
  std::vector<std::thread> threads;
  for (uint32_t w = 0; w < kWorkers; ++w) {
    threads.emplace_back([&, w] {
      results[w] = Push(
          *clients[w], w, [&](uint64_t step) { return pace.IsOver(w, step); }, &acknowledged, &steps[w]);
      if (!results[w].ok()) ++failed;
    });
  }
  auto join = absl::MakeCleanup([&] {
    pace.End();
    for (std::thread& thread : threads) thread.join();
  });
  CounterRandom random(static_cast<uint64_t>(GetParam()) + 1, 7);
  uint64_t terms = kServers;
  for (int kill = 0; kill < kills; ++kill) {
    // Every kill meets a loaded server that serves.
    const uint64_t wanted = acknowledged + kWorkers * kStepsBetweenKills;
    while (acknowledged < wanted && failed == 0) std::this_thread::yield();
    const auto victim = static_cast<uint32_t>(random.Below(kServers));
    if (failed > 0 || !servers.AwaitServing(victim)) break;
    servers.Kill(victim);
    servers.Start(victim);
    ++terms;
  }
  // Goes on until every server has replaced a part of its log by a snapshot.
  for (uint32_t s = 0; s < kServers; ++s) {
    const absl::Time deadline = absl::Now() + kTestTimeout;
    for (bool taken = false; !taken && failed == 0 && absl::Now() < deadline;) {
      const absl::StatusOr<v1::DurabilityInfo> info = servers.Info(s);
      taken = info.ok() && info->snapshot_position() > 0;
    }
  }
  const uint64_t all_steps = pace.End();
  for (std::thread& thread : threads) thread.join();
  std::move(join).Cancel();
  for (const absl::Status& result : results) TANDEM_ASSERT_OK(result);
  EXPECT_EQ(acknowledged, kWorkers * all_steps);
  TANDEM_ASSERT_OK(clients[0]->Flush("t"));
  std::vector<uint64_t> ids = Ids::Shared();
  for (uint32_t w = 0; w < kWorkers; ++w) {
    for (uint64_t step = 0; step < all_steps; ++step) {
      const std::vector<uint64_t> own = Ids::Private(w, step);
      ids.insert(ids.end(), own.begin(), own.end());
    }
  }
  std::vector<float> rows(ids.size() * kDim);
  TANDEM_ASSERT_OK(clients[0]->Pull(0, true, {{.table = "t", .ids = ids, .rows = rows.data()}}));
  for (size_t i = 0; i < ids.size(); ++i) {
    const float wanted = i < kServers ? static_cast<float>(kWorkers * all_steps) : 1.0f;
    ASSERT_EQ(rows[i * kDim], wanted) << "id " << ids[i];
    ASSERT_EQ(rows[i * kDim + kDim - 1], wanted) << "id " << ids[i];
  }
  uint64_t seen_terms = 0;
  double longest_pause = 0;
  for (uint32_t s = 0; s < kServers; ++s) {
    TANDEM_ASSERT_OK_AND_ASSIGN(const v1::DurabilityInfo info, servers.Info(s));
    EXPECT_EQ(info.synced(), GetParam() % 2 == 0);
    EXPECT_GT(info.snapshot_position(), 0u);
    seen_terms += info.term();
    longest_pause = std::max(longest_pause, info.longest_snapshot_pause_s());
  }
  EXPECT_EQ(seen_terms, terms);
  EXPECT_EQ(terms, kServers + static_cast<uint64_t>(kills));
  RecordProperty("kills", kills);
  RecordProperty("pushes", absl::StrCat(acknowledged.load()));
  RecordProperty("longest_snapshot_pause_ms", absl::StrCat(longest_pause * 1e3));
}

INSTANTIATE_TEST_SUITE_P(Modes, PsDurabilityTest, ::testing::Range(0, 4),
                         [](const ::testing::TestParamInfo<int>& info) {
                           return std::string(std::vector<const char*>{
                               "async", "bounded", "sync", "gba"}[static_cast<size_t>(info.param)]);
                         });

TEST(PsLog, AServerThatIsStoppedKeepsItsLogFromAnother) {
  DurableServers servers;
  TANDEM_ASSERT_OK(servers.Connect(0));
  servers.process(0).Signal(SIGSTOP);
  const testing::TempDir scratch;
  // A supervisor that takes the server for dead starts it again with the same log.
  const std::string log =
      absl::StrCat(testing::ReadFile(absl::StrCat("/proc/", servers.process(0).pid(), "/cmdline")));
  const size_t at = log.find("--wal-dir") + sizeof("--wal-dir");
  const std::string directory = log.substr(at, log.find('\0', at) - at);
  TANDEM_ASSERT_OK_AND_ASSIGN(auto store, collectives::StoreServer::Start("127.0.0.1:0"));
  const testing::Finished second =
      testing::RunTandem({"ps", "--index", "0", "--num-servers", "2", "--wal-dir", directory},
                         {{"TANDEM_STORE", absl::StrCat("127.0.0.1:", store->port())}});
  EXPECT_EQ(second.exit_code, 1);
  EXPECT_THAT(second.err, HasSubstr(absl::StrCat("is held by process ", servers.process(0).pid())));
  servers.process(0).Signal(SIGCONT);
}

}  // namespace
}  // namespace tandem::cli
