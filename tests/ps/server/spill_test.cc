// SPDX-License-Identifier: Apache-2.0
// Servers whose tables have rows in memory and on disk.

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/checkpoint/checkpoint_dir.h"
#include "ps/checkpoint/digest.h"
#include "tests/ps/server/cluster.h"
#include "tests/ps/storage/spill/memory_tier.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::ps::testing {
namespace {

using ::tandem::testing::StatusIs;
using ::tandem::testing::TempDir;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint32_t kSpillDim = 16;
constexpr uint64_t kSpillIds = 6000;

v1::TableConfig Table(bool spill) {
  v1::TableConfig config = EmbeddingTable("user", kSpillDim, Adagrad(0.1f), Uniform(-1, 1));
  *config.mutable_eviction() = EvictLru();
  config.set_byte_budget(spill ? 256 << 10 : uint64_t{1} << 40);
  config.set_spill(spill);
  return config;
}

class ServerSpillTest : public ::testing::Test {
 protected:
  ParameterServerOptions Options() {
    return {.num_buckets = 16, .cold_store = std::make_shared<MemoryStore>(&disk_)};
  }
  // Returns every row that was pulled.
  static std::vector<float> Train(Cluster& cluster, uint64_t first, uint64_t last, uint64_t epoch = 1) {
    std::vector<float> seen;
    for (uint64_t step = first; step < last; ++step) {
      CounterRandom random(/*seed=*/1, step);
      PushOf push{.table = "user", .dim = kSpillDim};
      for (int i = 0; i < 400; ++i) push.ids.push_back(random.Below(kSpillIds) * 7919);
      const absl::StatusOr<std::vector<float>> rows = cluster.Pull(0, step, "user", kSpillDim, push.ids);
      TANDEM_EXPECT_OK(rows);
      if (!rows.ok()) return seen;
      seen.insert(seen.end(), rows->begin(), rows->end());
      for (const float row : *rows) push.gradients.push_back(row + static_cast<float>(random.Normal()));
      const uint64_t sequence = epoch == 1 ? step + 1 : step - first + 1;
      const auto missing = cluster.Push({.step = step, .sequence = sequence, .epoch = epoch}, push);
      TANDEM_EXPECT_OK(missing);
      EXPECT_EQ(missing.value_or(1), 0);
    }
    return seen;
  }
  static absl::StatusOr<std::string> Save(Cluster& cluster, const std::string& root, uint64_t step) {
    TANDEM_ASSIGN_OR_RETURN(const std::string unfinished, BeginCheckpoint(root, step));
    for (size_t s = 0; s < cluster.size(); ++s) TANDEM_RETURN_IF_ERROR(cluster.server(s).Save(unfinished));
    TANDEM_RETURN_IF_ERROR(WriteDenseState(unfinished, {}));
    return CommitCheckpoint(unfinished, {});
  }
  static TableDigest DigestOf(const std::string& directory) {
    const absl::StatusOr<CheckpointDigest> digest = DigestCheckpoint(directory);
    TANDEM_EXPECT_OK(digest);
    return digest.ok() && digest->tables.size() == 1 ? digest->tables[0] : TableDigest{};
  }

  TempDir dir_;
  MemoryDisk disk_;
};

TEST_F(ServerSpillTest, ATableIsRefusedByAServerWithoutADisk) {
  Driver driver{ParameterServerOptions()};
  EXPECT_THAT(
      driver.CreateTable(Table(/*spill=*/true)),
      StatusIs(absl::StatusCode::kFailedPrecondition, AllOf(HasSubstr("'user'"), HasSubstr("--spill-dir"))));
  TANDEM_EXPECT_OK(driver.CreateTable(Table(/*spill=*/false)));
}

TEST_F(ServerSpillTest, TrainsSavesAndLoadsAsIfMemoryHadNoBound) {
  Cluster spilling(2, Options()), unbounded(2, {.num_buckets = 16});
  TANDEM_ASSERT_OK(spilling.CreateTable(Table(true)));
  TANDEM_ASSERT_OK(unbounded.CreateTable(Table(false)));
  EXPECT_EQ(Train(spilling, 0, 30), Train(unbounded, 0, 30));
  uint64_t in_memory = 0, spilled = 0, in_all = 0;
  for (size_t s = 0; s < 2; ++s) {
    const v1::TableStatistics statistics = spilling.server(s).Table("user").statistics();
    in_memory += statistics.rows();
    spilled += statistics.spilled_rows();
    in_all += unbounded.server(s).Table("user").statistics().rows();
    EXPECT_GT(statistics.spilled_bytes(), 0);
    EXPECT_GT(statistics.spill_reads(), 0);
    EXPECT_GE(statistics.spill_writes(), statistics.spilled_rows());
  }
  EXPECT_EQ(in_memory + spilled, in_all);
  EXPECT_GT(spilled, in_memory);

  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string saved, Save(spilling, dir_.File("spilling"), 30));
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string wanted, Save(unbounded, dir_.File("unbounded"), 30));
  EXPECT_EQ(DigestOf(saved).rows, in_all);
  EXPECT_EQ(DigestOf(saved).digest, DigestOf(wanted).digest);

  // Load into one server with less memory, and continue there.
  Cluster one(1, Options());
  TANDEM_ASSERT_OK(one.CreateTable(Table(true)));
  TANDEM_ASSERT_OK(one.server(0).Load(saved));
  const v1::TableStatistics loaded = one.server(0).Table("user").statistics();
  EXPECT_EQ(loaded.rows() + loaded.spilled_rows(), in_all);
  EXPECT_GT(loaded.spilled_rows(), loaded.rows());
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string again, Save(one, dir_.File("one"), 30));
  EXPECT_EQ(DigestOf(again).digest, DigestOf(wanted).digest);
  EXPECT_EQ(Train(one, 30, 40, /*epoch=*/2), Train(unbounded, 30, 40));
}

TEST_F(ServerSpillTest, WhatTheDiskCannotReadIsAnErrorOfThePullOrThePush) {
  Cluster cluster(1, Options());
  TANDEM_ASSERT_OK(cluster.CreateTable(Table(true)));
  Train(cluster, 0, 30);
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string saved, Save(cluster, dir_.File("ckpt"), 30));
  disk_.FailGets(absl::UnavailableError("table 'user', rows on disk in /spill: reading: input/output error"));
  std::vector<uint64_t> ids;
  for (uint64_t id = 0; id < kSpillIds; ++id) ids.push_back(id * 7919);
  EXPECT_THAT(cluster.Pull(0, 30, "user", kSpillDim, ids),
              StatusIs(absl::StatusCode::kUnavailable, AllOf(HasSubstr("'user'"), HasSubstr("/spill"))));
  // The client must not retry this error: the push counts as taken.
  EXPECT_THAT(cluster.Push({.step = 30}, {.table = "user",
                                          .dim = kSpillDim,
                                          .ids = ids,
                                          .gradients = std::vector<float>(ids.size() * kSpillDim, 1.0f)}),
              StatusIs(absl::StatusCode::kDataLoss, AllOf(HasSubstr("/spill"), HasSubstr("checkpoint"))));
  disk_.FailGets(absl::OkStatus());
  // A client that repeats the push by hand learns that it is lost.
  EXPECT_THAT(cluster.Push({.step = 30}, {.table = "user", .dim = kSpillDim}),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("checkpoint")));
  EXPECT_THAT(cluster.Pull(0, 31, "user", kSpillDim, ids), StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_THAT(Save(cluster, dir_.File("ckpt"), 31), StatusIs(absl::StatusCode::kDataLoss));
  TANDEM_ASSERT_OK(cluster.server(0).Load(saved));
  TANDEM_EXPECT_OK(cluster.Pull(0, 30, "user", kSpillDim, ids));
}

TEST_F(ServerSpillTest, AWriteOfRowsThatTheDiskInterruptsIsRepeatedWhole) {
  Driver driver(Options());
  TANDEM_ASSERT_OK(driver.CreateTable(Table(true)));
  constexpr uint64_t kRows = 2000;  // more than fit into memory
  v1::WriteRowStatesRequest write;
  write.set_table("user");
  write.set_epoch(1);
  write.set_dim(kSpillDim);
  write.set_state_floats(kSpillDim);
  for (uint64_t id = 0; id < kRows; ++id) write.add_ids(id);
  const auto send = [&](uint64_t sequence, float value) {
    write.set_sequence(sequence);
    write.mutable_values()->Resize(static_cast<int>(kRows * 2 * kSpillDim), 0);
    std::fill(write.mutable_values()->begin(), write.mutable_values()->end(), value);
    return driver.Call<v1::WriteRowStatesResponse>("WriteRowStates", write);
  };
  TANDEM_ASSERT_OK(send(1, 1.0f));
  ASSERT_GT(driver.Table("user").statistics().spilled_rows(), 0);
  disk_.FailGets(absl::UnavailableError("reading: input/output error"));
  EXPECT_THAT(send(2, 2.0f), StatusIs(absl::StatusCode::kUnavailable));
  disk_.FailGets(absl::OkStatus());
  TANDEM_ASSERT_OK_AND_ASSIGN(const v1::WriteRowStatesResponse repeated, send(2, 2.0f));
  EXPECT_FALSE(repeated.duplicate());
  TANDEM_ASSERT_OK_AND_ASSIGN(const v1::WriteRowStatesResponse again, send(2, 3.0f));
  EXPECT_TRUE(again.duplicate());
  v1::ReadRowStatesRequest read;
  read.set_table("user");
  *read.mutable_ids() = write.ids();
  TANDEM_ASSERT_OK_AND_ASSIGN(const v1::ReadRowStatesResponse rows,
                              driver.Call<v1::ReadRowStatesResponse>("ReadRowStates", read));
  EXPECT_THAT(rows.values(), ::testing::Each(2.0f));
}

}  // namespace
}  // namespace tandem::ps::testing
