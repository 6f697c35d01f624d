// SPDX-License-Identifier: Apache-2.0
// Servers that die and come back with their log.

#include <atomic>
#include <map>
#include <optional>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/checkpoint/checkpoint_dir.h"
#include "ps/log/record.h"
#include "ps/snapshot/snapshot_file.h"
#include "tandem/v1/durability.pb.h"
#include "tests/ps/server/durable_shard.h"
#include "tests/testing/mutate_message.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::ps::testing {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

struct Mode {
  std::string name;
  v1::UpdateMode mode;
};
std::vector<Mode> Modes() {
  return {{"async", Async()}, {"bounded", Bounded(3)}, {"sync", Sync()}, {"gba", Gba(1000, 4)}};
}

TEST(Durability, AcknowledgedPushesSurviveTheServerInEveryMode) {
  for (const Mode& mode : Modes()) {
    for (const bool power : {false, true}) {
      SCOPED_TRACE(absl::StrCat(mode.name, power ? ", power" : ", kill"));
      Shard shard;
      TANDEM_ASSERT_OK(shard.Start());
      TANDEM_ASSERT_OK(shard->CreateTable(CountTable(2, mode.mode)));
      // Worker 1 is a step behind, so that in sync mode a push waits.
      for (uint64_t step = 0; step < 10; ++step) {
        TANDEM_ASSERT_OK(shard->Push({.worker = 0, .step = step}, {CountPush(0, step)}));
        if (step > 0) {
          TANDEM_ASSERT_OK(shard->Push({.worker = 1, .step = step - 1}, {CountPush(1, step - 1)}));
        }
        if (step % 4 == 3) {
          power ? shard.LosePower(step) : shard.Kill();
          TANDEM_ASSERT_OK(shard.Start());
          // An acknowledged push is a duplicate.
          TANDEM_ASSERT_OK_AND_ASSIGN(const v1::PushResponse again,
                                      shard->Push({.worker = 0, .step = step}, {CountPush(0, step)}));
          EXPECT_TRUE(again.duplicate());
        }
      }
      TANDEM_ASSERT_OK(shard->Push({.worker = 1, .step = 9}, {CountPush(1, 9)}));
      TANDEM_ASSERT_OK(shard->Flush("user"));
      EXPECT_EQ(ValueOf(shard, kShared), 20.0f);
      for (uint32_t worker : {0, 1}) {
        for (uint64_t step = 0; step < 10; ++step) {
          EXPECT_EQ(ValueOf(shard, PrivateRow(worker, step)), 1.0f) << worker << " " << step;
        }
      }
      EXPECT_EQ(shard.Info().term(), 3u);
    }
  }
}

TEST(Durability, QueuedPushesAreInSnapshotsToo) {
  for (const Mode& mode : Modes()) {
    SCOPED_TRACE(mode.name);
    Shard shard([](ParameterServerOptions* options) { options->durability.snapshot_bytes = 2000; });
    TANDEM_ASSERT_OK(shard.Start());
    TANDEM_ASSERT_OK(shard->CreateTable(CountTable(2, mode.mode)));
    uint64_t step = 0;
    // Worker 1 does not push yet: in sync mode all of worker 0's pushes wait.
    for (uint64_t snapshots = 0; snapshots < 2; ++snapshots) {
      for (int i = 0; i < 40; ++i, ++step) {
        TANDEM_ASSERT_OK(shard->Push({.worker = 0, .step = step}, {CountPush(0, step)}));
      }
      shard.AwaitSnapshot(snapshots);
    }
    shard.Kill();
    TANDEM_ASSERT_OK(shard.Start());
    EXPECT_GT(shard.Info().snapshot_position(), 0u);
    EXPECT_LT(shard.Info().replayed_records(), 80u);
    for (uint64_t s = 0; s < step; ++s) {
      TANDEM_ASSERT_OK(shard->Push({.worker = 1, .step = s}, {CountPush(1, s)}));
    }
    TANDEM_ASSERT_OK(shard->Flush("user"));
    EXPECT_EQ(ValueOf(shard, kShared), static_cast<float>(2 * step));
    for (uint32_t worker : {0, 1}) {
      for (uint64_t s = 0; s < step; ++s) ASSERT_EQ(ValueOf(shard, PrivateRow(worker, s)), 1.0f) << s;
    }
  }
}

// A server that is killed and one that is not get equal pushes. Then the same rows must have left.
TEST(Durability, OccurrencesAreReplayedAndInSnapshots) {
  for (const Mode& mode : Modes()) {
    SCOPED_TRACE(mode.name);
    v1::TableConfig config = CountTable(2, mode.mode);
    *config.mutable_eviction() = EvictLfu(/*half_life=*/7);
    config.set_byte_budget(64 << 10);
    const auto make = [](ParameterServerOptions* options) {
      options->num_buckets = 1;
      options->durability.snapshot_bytes = 4000;
    };
    Shard shard(make), undisturbed(make);
    for (Shard* const each : {&shard, &undisturbed}) {
      TANDEM_ASSERT_OK(each->Start());
      TANDEM_ASSERT_OK((*each)->CreateTable(config));
    }
    constexpr uint64_t kIds = 4000, kNew = 100;
    // Worker 1 is late, so that in sync mode pushes are queued when the server is killed.
    constexpr uint64_t kSteps = 40, kLate = 12;
    const auto push = [&](uint32_t worker, uint64_t step) {
      PushOf push = {.table = "user", .dim = 1, .occurrence_bytes = 1};
      for (uint64_t i = 0; i < kNew; ++i) {
        push.ids.push_back((step * kNew + i) % kIds);
        push.gradients.push_back(-1);
        push.occurrences.push_back(static_cast<char>(1 + (i * 7 + step + worker) % 50));
      }
      TANDEM_ASSERT_OK(shard->Push({.worker = worker, .step = step}, {push}));
      TANDEM_ASSERT_OK(undisturbed->Push({.worker = worker, .step = step}, {push}));
    };
    std::vector<uint64_t> all(kIds);
    for (uint64_t id = 0; id < kIds; ++id) all[id] = id;
    for (uint64_t step = 0; step < kSteps + kLate; ++step) {
      if (step < kSteps) push(0, step);
      if (step >= kLate) push(1, step - kLate);
      if (step % 13 != 12) continue;
      shard.Kill();
      TANDEM_ASSERT_OK(shard.Start());
    }
    TANDEM_ASSERT_OK(shard->Flush("user"));
    TANDEM_ASSERT_OK(undisturbed->Flush("user"));
    TANDEM_ASSERT_OK_AND_ASSIGN(const Rows rows, shard->Pull(0, kSteps, {{"user", all}}, true));
    TANDEM_ASSERT_OK_AND_ASSIGN(const Rows expected, undisturbed->Pull(0, kSteps, {{"user", all}}, true));
    EXPECT_EQ(rows.slices[0], expected.slices[0]);
    const uint64_t kept = undisturbed->Table("user").statistics().rows();
    EXPECT_LT(kept, kIds);
    EXPECT_EQ(shard->Table("user").statistics().rows(), kept);
    EXPECT_GT(shard.Info().snapshot_position(), 0u);
  }
}

// Pushes with several threads, each with its own worker, until `stop`. A push that fails is repeated under
// its sequence by the next call. Returns for each worker the number of steps that were acknowledged.
class Load {
 public:
  Load(uint32_t workers, size_t in_flight) : next_(workers), in_flight_(in_flight) {}

  // Pushes until every worker has `steps` acknowledged steps, or a push fails.
  void Run(Shard& shard, uint64_t steps) {
    std::vector<std::thread> threads;
    for (uint32_t w = 0; w < next_.size(); ++w) {
      threads.emplace_back([&, w] {
        while (next_[w] < steps) {
          std::vector<std::shared_ptr<TestCall>> calls;
          for (uint64_t i = 0; i < in_flight_ && next_[w] + i < steps; ++i) {
            calls.push_back(
                shard->StartPush({.worker = w, .step = next_[w] + i}, {CountPush(w, next_[w] + i)}));
          }
          bool ok = true;
          size_t acknowledged = 0;
          for (const auto& call : calls) {
            ok = call->Wait().ok() && ok;
            if (ok) ++acknowledged;
          }
          next_[w] += acknowledged;  // the first that failed and those behind it are repeated
          if (!ok) return;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  uint64_t total() const {
    uint64_t total = 0;
    for (const uint64_t steps : next_) total += steps;
    return total;
  }
  const std::vector<uint64_t>& next() const { return next_; }

 private:
  std::vector<uint64_t> next_;
  const size_t in_flight_;
};

TEST(Durability, AtEveryCutOfTheDiskEachPushCountsOnce) {
  for (const Mode& mode : Modes()) {
    SCOPED_TRACE(mode.name);
    bool cut = true;
    for (uint64_t operations = 0; cut; operations += 1 + operations / 8) {
      SCOPED_TRACE(operations);
      Shard shard([](ParameterServerOptions* options) { options->durability.snapshot_bytes = 3000; });
      constexpr uint64_t kSteps = 40;
      constexpr uint32_t kWorkers = 2;
      Load load(kWorkers, 4);
      cut = false;
      for (int life = 0; life < 3; ++life) {
        shard.files().CutAfter(operations);
        if (shard.Start().ok() && shard->CreateTable(CountTable(kWorkers, mode.mode)).ok()) {
          load.Run(shard, kSteps);
        }
        cut = cut || shard.files().cut();
        shard.LosePower(operations * 4 + static_cast<uint64_t>(life));
      }
      TANDEM_ASSERT_OK(shard.Start());
      TANDEM_ASSERT_OK(shard->CreateTable(CountTable(kWorkers, mode.mode)));
      load.Run(shard, kSteps);
      ASSERT_EQ(load.total(), kWorkers * kSteps);
      TANDEM_ASSERT_OK(shard->Flush("user"));
      ASSERT_EQ(ValueOf(shard, kShared), static_cast<float>(kWorkers * kSteps));
      for (uint32_t w = 0; w < kWorkers; ++w) {
        for (uint64_t s = 0; s < kSteps; ++s)
          ASSERT_EQ(ValueOf(shard, PrivateRow(w, s)), 1.0f) << w << " " << s;
      }
    }
  }
}

TEST(Durability, SnapshotsAreTakenWhileUpdatesGoOn) {
  Shard shard([](ParameterServerOptions* options) {
    options->durability.snapshot_bytes = 20000;
    options->durability.segment_bytes = 16384;
  });
  TANDEM_ASSERT_OK(shard.Start());
  TANDEM_ASSERT_OK(shard->CreateTable(CountTable(4, Async())));
  Load load(4, 4);
  for (uint64_t steps = 200; steps <= 800; steps += 200) {
    load.Run(shard, steps);
    if (steps == 600) shard.AwaitSnapshot(0);  // 800 pushes of this life are more than snapshot_bytes
    shard.Kill();
    TANDEM_ASSERT_OK(shard.Start());
  }
  EXPECT_GT(shard.Info().snapshot_position(), 0u);
  EXPECT_EQ(ValueOf(shard, kShared), 3200.0f);
  for (uint32_t w = 0; w < 4; ++w) {
    for (uint64_t s = 0; s < 800; ++s) ASSERT_EQ(ValueOf(shard, PrivateRow(w, s)), 1.0f) << w << " " << s;
  }
}

TEST(Durability, ASyncTableWithKillsEndsWithTheBitsOfAnUndisturbedOne) {
  const auto train = [](bool kill) {
    Shard shard([](ParameterServerOptions* options) { options->durability.snapshot_bytes = 10000; });
    TANDEM_CHECK(shard.Start().ok());
    v1::TableConfig config = TestTable("user", 4, 3, Sync(), Adam(0.01f));
    TANDEM_CHECK(shard->CreateTable(config).ok());
    for (uint64_t step = 0; step < 60; ++step) {
      for (uint32_t worker : {1, 0, 2}) {
        PushOf push{.table = "user", .dim = 4};
        for (uint64_t id = 0; id < 20; ++id) {
          if ((id + step + worker) % 3 == 0) continue;
          push.ids.push_back(id);
          for (int i = 0; i < 4; ++i) {
            push.gradients.push_back(0.01f * static_cast<float>((id * 7 + step * 3 + worker) % 11) - 0.05f);
          }
        }
        TANDEM_CHECK(shard->Push({.worker = worker, .step = step}, {push}).ok());
        if (kill && (step * 3 + worker) % 17 == 5) {
          shard.Kill();
          TANDEM_CHECK(shard.Start().ok());
        }
      }
    }
    std::vector<uint64_t> ids(20);
    for (uint64_t id = 0; id < 20; ++id) ids[id] = id;
    return shard->Pull(0, 60, {{"user", ids}})->slices[0];
  };
  EXPECT_EQ(train(true), train(false));
}

TEST(Durability, ADuplicateIsAnsweredOnlyWhenTheFirstOneIsSafe) {
  Shard shard;
  TANDEM_ASSERT_OK(shard.Start());
  TANDEM_ASSERT_OK(shard->CreateTable(CountTable(1, Async())));
  shard.files().HoldSyncs(true);
  const auto first = shard->StartPush({.step = 0}, {CountPush(0, 0)});
  const auto second = shard->StartPush({.step = 0}, {CountPush(0, 0)});
  EXPECT_EQ(ValueOf(shard, kShared), 1.0f);
  EXPECT_FALSE(first->answered());
  EXPECT_FALSE(second->answered());
  shard.files().HoldSyncs(false);
  TANDEM_ASSERT_OK_AND_ASSIGN(const v1::PushResponse taken, Driver::ParsePushResponse(first->Wait()));
  EXPECT_FALSE(taken.duplicate());
  TANDEM_ASSERT_OK_AND_ASSIGN(const v1::PushResponse again, Driver::ParsePushResponse(second->Wait()));
  EXPECT_TRUE(again.duplicate());
}

TEST(Durability, PushesWaitForSpaceInTheLogWithoutHoldingAThread) {
  Shard shard([](ParameterServerOptions* options) { options->durability.max_queued_bytes = 1; });
  TANDEM_ASSERT_OK(shard.Start());
  TANDEM_ASSERT_OK(shard->CreateTable(CountTable(1, Async())));
  shard.files().HoldSyncs(true);
  std::vector<std::shared_ptr<TestCall>> calls;
  for (uint64_t step = 0; step < 10; ++step)
    calls.push_back(shard->StartPush({.step = step}, {CountPush(0, step)}));
  EXPECT_EQ(shard->server().parked_calls(), 9u);
  EXPECT_EQ(ValueOf(shard, kShared), 1.0f);
  shard.files().HoldSyncs(false);
  for (const auto& call : calls) TANDEM_EXPECT_OK(call->Wait());
  EXPECT_EQ(ValueOf(shard, kShared), 10.0f);
  EXPECT_GE(shard.Info().log_waits(), 9u);
}

TEST(Durability, ALogThatWasNotSyncedSurvivesTheProcessAndIsRefusedAfterAReboot) {
  bool accept_loss = false;
  Shard shard([&](ParameterServerOptions* options) {
    options->durability.sync = false;
    options->durability.accept_loss = accept_loss;
  });
  TANDEM_ASSERT_OK(shard.Start());
  TANDEM_ASSERT_OK(shard->CreateTable(CountTable(1, Async())));
  TANDEM_ASSERT_OK(shard->Push({.step = 0}, {CountPush(0, 0)}));
  shard.Kill();
  TANDEM_ASSERT_OK(shard.Start());
  EXPECT_EQ(ValueOf(shard, kShared), 1.0f);
  TANDEM_ASSERT_OK(shard->Push({.step = 1}, {CountPush(0, 1)}));
  shard.Kill();
  // Everything happens to have reached the disk, which nobody can know.
  TANDEM_ASSERT_OK(shard.files().SyncDirectory("/shard"));
  for (const std::string& path : shard.files().Paths("/shard/"))
    TANDEM_ASSERT_OK(shard.files().SyncFile(path));
  shard.LosePower(1);
  EXPECT_THAT(shard.Start(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                      AllOf(HasSubstr("--wal-sync never"), HasSubstr("--accept-loss"))));
  accept_loss = true;
  TANDEM_ASSERT_OK(shard.Start());
  EXPECT_EQ(ValueOf(shard, kShared), 2.0f);
  shard.Kill();
  accept_loss = false;  // it has been accepted
  TANDEM_ASSERT_OK(shard.Start());
  EXPECT_EQ(ValueOf(shard, kShared), 2.0f);
}

TEST(Durability, DamageIsNeverTakenForTheEndOfTheLog) {
  bool accept_loss = false;
  Shard shard([&](ParameterServerOptions* options) { options->durability.accept_loss = accept_loss; });
  TANDEM_ASSERT_OK(shard.Start());
  TANDEM_ASSERT_OK(shard->CreateTable(CountTable(1, Async())));
  for (uint64_t step = 0; step < 100; ++step) {
    TANDEM_ASSERT_OK(shard->Push({.step = step}, {CountPush(0, step)}));
  }
  shard.Kill();
  const std::vector<std::string> paths = shard.files().Paths("/shard/log-");
  ASSERT_GT(paths.size(), 2u);
  shard.files().Change(paths[1], [](std::string* content) {
    for (size_t i = 0; i < 8; ++i) (*content)[2000 + i] ^= 1;  // padding is not checked
  });
  EXPECT_THAT(shard.Start(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr(paths[1])));
  accept_loss = true;
  TANDEM_ASSERT_OK(shard.Start());
  const float kept = ValueOf(shard, kShared);
  EXPECT_GT(kept, 0.0f);
  EXPECT_LT(kept, 100.0f);
  accept_loss = false;
  TANDEM_ASSERT_OK(shard->Push({.step = 100}, {CountPush(0, 100)}));
  shard.Kill();
  TANDEM_ASSERT_OK(shard.Start());
  EXPECT_EQ(ValueOf(shard, kShared), kept + 1);
}

TEST(Durability, ADamagedSnapshotIsNamed) {
  Shard shard([](ParameterServerOptions* options) { options->durability.snapshot_bytes = 2000; });
  TANDEM_ASSERT_OK(shard.Start());
  TANDEM_ASSERT_OK(shard->CreateTable(CountTable(1, Async())));
  for (uint64_t step = 0; step < 50; ++step) {
    TANDEM_ASSERT_OK(shard->Push({.step = step}, {CountPush(0, step)}));
  }
  shard.AwaitSnapshot(0);
  shard.Kill();
  const std::vector<std::string> paths = shard.files().Paths("/shard/snapshot-");
  ASSERT_FALSE(paths.empty());
  for (const std::string& path : paths) {
    shard.files().Change(path, [](std::string* content) {
      for (size_t i = 0; i < 8; ++i) (*content)[content->size() / 2 + i] ^= 1;  // padding is not checked
    });
  }
  EXPECT_THAT(shard.Start(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("snapshot-")));
}

// A follower gets such a state from another process; it is restored by the same code.
TEST(Durability, AStateThatSaysImpossibleThingsIsRestoredOrRefused) {
  for (const Mode& mode : Modes()) {
    SCOPED_TRACE(mode.name);
    uint64_t snapshot_bytes = 1000;
    Shard shard(
        [&](ParameterServerOptions* options) { options->durability.snapshot_bytes = snapshot_bytes; });
    TANDEM_ASSERT_OK(shard.Start());
    v1::TableConfig config = CountTable(2, mode.mode);
    *config.mutable_admission() = AdmitAfter(2, 4096);
    TANDEM_ASSERT_OK(shard->CreateTable(config));
    for (uint64_t step = 0; step < 20; ++step) {  // worker 1 does not push: some modes queue
      TANDEM_ASSERT_OK(shard->Push({.worker = 0, .step = step}, {CountPush(0, step)}));
    }
    shard.AwaitSnapshot(0);
    shard.Kill();
    const std::vector<std::string> paths = shard.files().Paths("/shard/snapshot-");
    ASSERT_FALSE(paths.empty());
    snapshot_bytes = uint64_t{1} << 30;  // the newest one stays
    const std::string path = paths.back();
    std::string good;
    shard.files().Change(path, [&](std::string* content) { good = *content; });
    const std::optional<Record> first = ParseRecord(good, kSnapshotMagic.size());
    ASSERT_TRUE(first.has_value() && first->kind == RecordKind::kState);
    v1::SnapshotState state;
    ASSERT_TRUE(state.ParseFromArray(first->body.data(), static_cast<int>(first->body.size())));
    int refused = 0, all = 0;
    const auto start_with = [&](const std::string& body) {
      std::string bad(kSnapshotMagic);
      AppendRecord(first->kind, first->position, first->durable, Bytes(std::string(body)), &bad);
      bad += good.substr(kSnapshotMagic.size() + first->bytes);
      shard.files().Change(path, [&](std::string* content) { *content = bad; });
      ++all;
      if (const absl::Status started = shard.Start(); !started.ok()) {
        ++refused;
        return;
      }
      shard->Flush("user").IgnoreError();
      shard.Kill();
    };
    start_with(state.SerializeAsString());
    ASSERT_EQ(refused, 0);
    tandem::testing::ForEachMutation(state,
                                     [&](const google::protobuf::Message& bad, const std::string& what) {
                                       SCOPED_TRACE(what);
                                       start_with(bad.SerializeAsString());
                                     });
    EXPECT_GT(refused, all / 4);
  }
}

TEST(Durability, TheLogOfAnotherServerIsRefused) {
  uint32_t index = 0;
  Shard shard([&](ParameterServerOptions* options) {
    options->index = index;
    options->num_servers = 2;
  });
  TANDEM_ASSERT_OK(shard.Start());
  shard.Kill();
  index = 1;
  EXPECT_THAT(shard.Start(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                      AllOf(HasSubstr("server 0 of 2"), HasSubstr("server 1 of 2"))));
}

TEST(Durability, ModesFlushesEpochsRanksAndWrittenRowsSurvive) {
  for (const bool snapshot : {false, true}) {
    Shard shard([&](ParameterServerOptions* options) {
      if (snapshot) options->durability.snapshot_bytes = 1000;
    });
    TANDEM_ASSERT_OK(shard.Start());
    EveryChange changes;
    changes.Make(*shard.operator->());
    if (::testing::Test::HasFatalFailure()) return;
    if (snapshot) {
      for (uint64_t step = 6; step < 60; ++step) {
        TANDEM_ASSERT_OK(
            shard->Push({.worker = 0, .step = step}, {{"user", 1, {}, {}}, {"item", 1, {}, {}}}));
        TANDEM_ASSERT_OK(
            shard->Push({.worker = 1, .step = step, .epoch = changes.epoch()}, {{"item", 1, {4}, {-1}}}));
      }
      shard.AwaitSnapshot(0);
    }
    shard.Kill();
    TANDEM_ASSERT_OK(shard.Start());
    changes.ExpectKept(*shard.operator->());
  }
}

TEST(Durability, ALoadedCheckpointSurvives) {
  const tandem::testing::TempDir checkpoint;
  Shard shard;
  TANDEM_ASSERT_OK(shard.Start());
  TANDEM_ASSERT_OK(shard->CreateTable(CountTable(1, Async())));
  TANDEM_ASSERT_OK(shard->Push({.step = 0}, {CountPush(0, 0)}));
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string unfinished, BeginCheckpoint(checkpoint.path(), 1));
  TANDEM_ASSERT_OK(shard->Save(unfinished));
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string path, CommitCheckpoint(unfinished, {}));
  for (uint64_t step = 1; step < 5; ++step) {
    TANDEM_ASSERT_OK(shard->Push({.step = step}, {CountPush(0, step)}));
  }
  TANDEM_ASSERT_OK(shard->Load(path));
  EXPECT_EQ(ValueOf(shard, kShared), 1.0f);
  TANDEM_ASSERT_OK(shard->Push({.step = 9, .sequence = 1, .epoch = 2}, {CountPush(0, 9)}));
  shard.Kill();
  TANDEM_ASSERT_OK(shard.Start());
  EXPECT_EQ(ValueOf(shard, kShared), 2.0f);
}

TEST(Durability, AClientsCopiesAreOlderThanARestart) {
  Shard shard;
  TANDEM_ASSERT_OK(shard.Start());
  TANDEM_ASSERT_OK(shard->CreateTable(CountTable(1, Async())));
  const auto generation = [&] {
    const absl::StatusOr<Bytes> answer = shard->StartPull(0, 0, {{"user", {kShared}}})->Wait();
    v1::PullResponse header;
    Bytes payload;
    TANDEM_CHECK(rpc::DecodeBulk(*answer, &header, &payload).ok());
    return header.slices(0).generation();
  };
  uint64_t before = generation();
  for (int life = 0; life < 3; ++life) {
    shard.Kill();
    TANDEM_ASSERT_OK(shard.Start());
    EXPECT_GT(generation(), before);
    before = generation();
  }
}

TEST(Durability, ADiskThatFailsEndsTheServerInsteadOfItsPromises) {
  absl::Notification failed;
  Shard shard([&](ParameterServerOptions* options) {
    options->durability.on_failure = [&](const absl::Status&) {
      if (!failed.HasBeenNotified()) failed.Notify();
    };
  });
  TANDEM_ASSERT_OK(shard.Start());
  TANDEM_ASSERT_OK(shard->CreateTable(CountTable(1, Async())));
  TANDEM_ASSERT_OK(shard->Push({.step = 0}, {CountPush(0, 0)}));
  shard.files().FailSyncs();
  EXPECT_THAT(shard->Push({.step = 1}, {CountPush(0, 1)}),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("the disk has failed")));
  EXPECT_TRUE(failed.WaitForNotificationWithTimeout(absl::Minutes(1)));
  shard.LosePower(3);
  TANDEM_ASSERT_OK(shard.Start());
  TANDEM_ASSERT_OK(shard->Push({.step = 1}, {CountPush(0, 1)}));
  EXPECT_EQ(ValueOf(shard, kShared), 2.0f);
}

}  // namespace
}  // namespace tandem::ps::testing
