// SPDX-License-Identifier: Apache-2.0
// Real servers, workers and links die, stop, hang, come and go while workers push. Each push counts once.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "gtest/gtest.h"
#include "ps/table.h"
#include "tests/cli/commands/exactly_once.h"
#include "tests/cli/commands/failover_events.h"
#include "tests/cli/commands/pushing_process.h"
#include "tests/cli/commands/shard_copies.h"
#include "tests/testing/processes/processes.h"
#include "tests/testing/status_matchers.h"

namespace tandem::cli {
namespace {

using testing::kTestTimeout;

constexpr uint32_t kServers = 2;
constexpr uint32_t kThreads = 2;  // workers in this process
constexpr uint32_t kRowFloats = 8;
constexpr int kLeastInFlight = 8;
constexpr uint64_t kPushesBefore = 200;  // each event

int FromEnvironment(const char* variable, int otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoi(text);
}

// Creates a table that takes a copy and a checkpoint some time.
absl::Status CreateLargeTable(ps::Client& client, uint32_t workers) {
  constexpr uint64_t kRows = 8192, kPushes = 32;
  ps::v1::TableConfig table = ps::EmbeddingTable("large", 64, ps::Sgd(1.0f), ps::Zeros());
  *table.mutable_update_mode() = ps::Async();
  table.set_num_workers(workers);
  TANDEM_RETURN_IF_ERROR(client.CreateTable(table));
  const std::vector<float> gradients(kRows * 64, -1.0f);
  std::vector<uint64_t> ids(kRows);
  for (uint64_t push = 0; push < kPushes; ++push) {
    for (uint64_t i = 0; i < kRows; ++i) ids[i] = push * kRows + i;
    TANDEM_RETURN_IF_ERROR(
        client.Push(push, {{.table = "large", .ids = ids, .gradients = gradients.data()}}));
  }
  return absl::OkStatus();
}

// Of each eight events two kill a primary and three happen inside another event. The kinds take turns; `mode`
// chooses where they begin, so that a short run has each kind in some mode.
Event Choose(int e, int mode, bool is_sync) {
  constexpr int kInside = static_cast<int>(kFirstInside), kInsideKinds = kEvents - kInside;
  const int turn = e / 8 * 3;
  const auto other = [&](int nth) { return static_cast<Event>(1 + (mode * 5 + turn + nth) % (kInside - 1)); };
  const auto inside = [&](int nth) {
    return static_cast<Event>(kInside + (mode * 3 + turn + nth) % kInsideKinds);
  };
  const Event events[] = {Event::kKillPrimary, other(0),  inside(0), other(1),
                          Event::kKillPrimary, inside(1), inside(2), other(2)};
  const Event event = events[e % 8];
  if (!is_sync) return event;
  // A step needs all workers, so a worker does not come back alone: the job begins a new round. A checkpoint
  // needs a barrier.
  if (event == Event::kKillWorker) return Event::kKillFollower;
  const bool possible = event != Event::kKillWorkerInFailover && event != Event::kKillPrimaryInCheckpoint;
  return possible ? event : Event::kKillLearner;
}

class PsFailoverEventsTest : public ::testing::TestWithParam<int> {};

// TANDEM_FAILOVER_EVENTS=1000 is the long form, over all modes; TANDEM_FAILOVER_SEED chooses another run.
TEST_P(PsFailoverEventsTest, EachPushCountsOnceWhateverHappensToProcessesAndLinks) {
  const auto which = static_cast<size_t>(GetParam());
  const Mode mode = AllModes()[which];
  const int events = (FromEnvironment("TANDEM_FAILOVER_EVENTS", 48) + 3) / 4;
  const auto seed = static_cast<uint64_t>(FromEnvironment("TANDEM_FAILOVER_SEED", 1));
  const bool workers_die = std::string(mode.name) != "sync";
  const uint32_t workers = kThreads + (workers_die ? 1 : 0);
  ShardCopies copies(kServers, 1, nullptr, ShardCopies::Network::kRelayed);
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<ps::Client> client,
                              copies.Connect(workers - 1, 2 * kTestTimeout));
  TANDEM_ASSERT_OK(client->StartPushEpoch());
  TANDEM_ASSERT_OK(CreateLargeTable(*client, workers));
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<ExactlyOnce> pushes,
                              ExactlyOnce::Start({.servers = kServers,
                                                  .workers = kThreads,
                                                  .other_workers = workers - kThreads,
                                                  .dim = kRowFloats,
                                                  .mode = mode.mode,
                                                  .connect = [&](uint32_t worker) {
                                                    return copies.Connect(worker, 2 * kTestTimeout);
                                                  }}));
  PushingProcess worker(
      {.worker = kThreads, .workers = workers, .servers = kServers, .dim = kRowFloats, .mode = which});
  if (workers_die) {
    ASSERT_TRUE(worker.Start(copies.Addresses()));
  }
  int least = std::numeric_limits<int>::max();
  const auto loaded = [&] {
    const int in_flight = pushes->AwaitInFlight(kLeastInFlight);
    least = std::min(least, in_flight);
    if (in_flight < 0) ADD_FAILURE() << pushes->End() << "\n" << copies.Describe();
    return in_flight >= 0;
  };
  CounterRandom random(seed, which);
  FailoverEvents happening(copies, workers_die ? &worker : nullptr, *client, CounterRandom(seed, 100 + which),
                           loaded);
  for (int e = 0; e < events; ++e) {
    ASSERT_TRUE(pushes->AwaitAcknowledged(kPushesBefore)) << pushes->End() << "\n" << copies.Describe();
    const Event event = Choose(e, GetParam(), !workers_die);
    ASSERT_TRUE(happening.Happen(event, static_cast<uint32_t>(random.Below(kServers))))
        << "event " << e << ", " << NameOf(event) << ", seed " << seed;
  }
  TANDEM_ASSERT_OK(pushes->End()) << "seed " << seed << "\n" << copies.Describe();
  std::vector<uint64_t> others;
  if (workers_die) {
    EXPECT_TRUE(worker.Kill()) << "the worker process had ended by itself";
    // Its last pushes count now or never.
    TANDEM_ASSERT_OK(client->StartPushEpoch());
    TANDEM_ASSERT_OK(client->CreateTable(CountingTable(kRowFloats, mode.mode, workers)));
    TANDEM_ASSERT_OK(client->Flush("t"));
    TANDEM_ASSERT_OK_AND_ASSIGN(others, worker.PushesOnServers(*client));
  }
  EXPECT_TRUE(pushes->EachPushCountsOnce(others)) << "seed " << seed << "\n" << copies.Describe();
  std::printf("%s: seed %llu, %llu pushes, at least %d in flight; %s\n", mode.name,
              static_cast<unsigned long long>(seed),
              static_cast<unsigned long long>(pushes->acknowledged() + worker.acknowledged()), least,
              happening.Summary().c_str());
}

INSTANTIATE_TEST_SUITE_P(Modes, PsFailoverEventsTest, ::testing::Range(0, 4),
                         [](const ::testing::TestParamInfo<int>& info) {
                           return std::string(AllModes()[static_cast<size_t>(info.param)].name);
                         });

}  // namespace
}  // namespace tandem::cli
