// SPDX-License-Identifier: Apache-2.0
// Moving rows with their optimizer state to a worker and back.
#include "ps/client/row_states.h"

#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/client/client.h"
#include "ps/optimizers/optimizer.h"
#include "ps/table.h"
#include "rpc/transport/loopback.h"
#include "tests/testing/ps_cluster.h"
#include "tests/testing/status_matchers.h"

namespace tandem::ps {
namespace {

using ::tandem::testing::PsCluster;
using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAreArray;

constexpr uint32_t kStateDim = 5;

v1::TableConfig StateTable(const std::string& name, v1::OptimizerConfig optimizer) {
  v1::TableConfig config = EmbeddingTable(name, kStateDim, std::move(optimizer), Uniform(-0.5f, 0.5f));
  *config.mutable_update_mode() = Async();
  config.set_num_workers(1);
  config.set_seed(7);
  return config;
}

std::vector<float> StateGradients(uint64_t step, size_t rows) {
  std::vector<float> gradients(rows * kStateDim);
  for (size_t i = 0; i < gradients.size(); ++i) {
    gradients[i] = std::sin(static_cast<float>(31 * step + i)) * 0.3f;
  }
  return gradients;
}

// Trains steps [begin, end) on the servers.
void TrainOnServers(Client& client, const std::vector<uint64_t>& ids, uint64_t begin, uint64_t end) {
  for (uint64_t step = begin; step < end; ++step) {
    std::vector<float> rows(ids.size() * kStateDim);
    TANDEM_ASSERT_OK(client.Pull(step, false, {{.table = "t", .ids = ids, .rows = rows.data()}}));
    const std::vector<float> gradients = StateGradients(step, ids.size());
    TANDEM_ASSERT_OK(client.Push(step, {{.table = "t", .ids = ids, .gradients = gradients.data()}},
                                 {.learning_rate_factor = 0.5f, .batch_share = 0.5f}));
  }
}

// Trains the same steps on rows that the worker holds.
void TrainReplicas(const Optimizer& optimizer, RowStates* states, uint64_t begin, uint64_t end) {
  const size_t rows = states->exists.size();
  for (uint64_t step = begin; step < end; ++step) {
    const std::vector<float> gradients = StateGradients(step, rows);
    std::vector<RowUpdate> updates;
    for (size_t i = 0; i < rows; ++i) {
      updates.push_back({states->row(i), states->row(i) + kStateDim, gradients.data() + i * kStateDim});
    }
    optimizer.Update(updates, kStateDim, 0.5f, 0.5f);
  }
}

std::vector<uint64_t> SomeIds(size_t count) {
  std::vector<uint64_t> ids;
  for (size_t i = 0; i < count; ++i) ids.push_back(i * 977 + 3);
  return ids;
}

class RowStatesTest : public ::testing::TestWithParam<std::string> {};

TEST_P(RowStatesTest, ARowThatIsTrainedElsewhereAndMovedBackHasTheBitsOfOneThatStayed) {
  v1::OptimizerConfig config;
  config.set_kind(GetParam());
  config.set_learning_rate(0.1f);
  config.set_momentum(0.9f);
  config.set_beta1(0.9f);
  config.set_beta2(0.99f);
  config.set_epsilon(1e-6f);
  config.set_initial_accumulator(0.1f);
  config.set_l1(0.01f);
  config.set_l2(0.05f);
  config.set_learning_rate_power(-0.5f);
  if (GetParam() != "ftrl") config.set_weight_decay(0.02f);
  config.set_clip_row_norm(0.6f);
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto optimizer, MakeOptimizer(config));
  const std::vector<uint64_t> ids = SomeIds(40);
  const auto final_states = [&](bool move) {
    PsCluster cluster(2);
    RowStates states;
    [&] {
      TANDEM_ASSERT_OK_AND_ASSIGN(const auto client, cluster.Connect());
      TANDEM_ASSERT_OK(client->CreateTable(StateTable("t", config)));
      TrainOnServers(*client, ids, 0, 4);
      if (move) {
        TANDEM_ASSERT_OK_AND_ASSIGN(states, client->ReadRowStates("t", ids));
        EXPECT_THAT(states.exists, Each(1));
        TrainReplicas(*optimizer, &states, 4, 9);
        TANDEM_ASSERT_OK(client->WriteRowStates("t", ids, states));
      } else {
        TrainOnServers(*client, ids, 4, 9);
      }
      TrainOnServers(*client, ids, 9, 12);
      TANDEM_ASSERT_OK_AND_ASSIGN(states, client->ReadRowStates("t", ids));
    }();
    return states;
  };
  const RowStates stayed = final_states(false);
  const RowStates moved = final_states(true);
  EXPECT_EQ(moved.state_floats, optimizer->state_floats(kStateDim));
  EXPECT_EQ(moved.values, stayed.values);
}

INSTANTIATE_TEST_SUITE_P(Optimizers, RowStatesTest, ::testing::ValuesIn([] {
                           std::vector<std::string> kinds;
                           for (const absl::string_view kind : OptimizerKinds()) kinds.emplace_back(kind);
                           return kinds;
                         }()),
                         [](const auto& info) { return info.param; });

class MovedRowsTest : public ::testing::Test {
 protected:
  void Create(const v1::TableConfig& config) {
    TANDEM_ASSERT_OK_AND_ASSIGN(client_, cluster_.Connect());
    TANDEM_ASSERT_OK(client_->CreateTable(config));
  }
  RowStates Read(const std::vector<uint64_t>& ids) {
    auto states = client_->ReadRowStates("t", ids);
    TANDEM_EXPECT_OK(states);
    return states.ok() ? *std::move(states) : RowStates();
  }

  PsCluster cluster_{2};
  std::unique_ptr<Client> client_;
};

TEST_F(MovedRowsTest, RowsOfMoreTablesThanPushesMayBeUnderWayAreWrittenTogether) {
  constexpr size_t kTables = 300;  // servers tell 256 pushes apart
  const std::vector<uint64_t> ids = SomeIds(3);
  Create(StateTable("t", Adagrad(0.1f, 0.25f)));
  std::vector<RowStates> states;
  std::vector<TableRowStates> tables;
  for (size_t t = 0; t < kTables; ++t) {
    TANDEM_ASSERT_OK(client_->CreateTable(StateTable(absl::StrCat("t", t), Adagrad(0.1f, 0.25f))));
    states.push_back(Read(ids));
    for (float& value : states.back().values) value = static_cast<float>(t);
  }
  for (size_t t = 0; t < kTables; ++t) {
    tables.push_back({.table = absl::StrCat("t", t), .ids = ids, .states = &states[t]});
  }
  TANDEM_ASSERT_OK(client_->WriteRowStates(tables));
  for (size_t t = 0; t < kTables; ++t) {
    TANDEM_ASSERT_OK_AND_ASSIGN(const RowStates read, client_->ReadRowStates(tables[t].table, ids));
    EXPECT_THAT(read.exists, Each(1));
    EXPECT_EQ(read.values, states[t].values) << t;
  }
}

TEST_F(MovedRowsTest, RowsOfTablesThatNeedManyMessagesAreWritten) {
  constexpr size_t kRows = 150'000;  // of 64 bytes: three messages to each of two servers
  std::vector<uint64_t> ids(kRows);
  std::iota(ids.begin(), ids.end(), 1);
  Create(StateTable("t", Adagrad(0.1f, 0.25f)));
  TANDEM_ASSERT_OK(client_->CreateTable(StateTable("u", Adagrad(0.1f, 0.25f))));
  RowStates one = Read({1});
  RowStates all{.dim = one.dim, .state_floats = one.state_floats};
  for (size_t i = 0; i < kRows * one.row_floats(); ++i) all.values.push_back(static_cast<float>(i % 1000));
  const TableRowStates tables[] = {{.table = "t", .ids = ids, .states = &all},
                                   {.table = "u", .ids = ids, .states = &all}};
  TANDEM_ASSERT_OK(client_->WriteRowStates(tables));
  EXPECT_EQ(Read(ids).values, all.values);
  TANDEM_ASSERT_OK_AND_ASSIGN(const RowStates other, client_->ReadRowStates("u", ids));
  EXPECT_EQ(other.values, all.values);
}

TEST_F(MovedRowsTest, NoTableIsWrittenIfOneOfThemIsUnknown) {
  const std::vector<uint64_t> ids = SomeIds(3);
  Create(StateTable("t", Adagrad(0.1f, 0.25f)));
  const RowStates states = Read(ids);
  const TableRowStates tables[] = {{.table = "t", .ids = ids, .states = &states},
                                   {.table = "missing", .ids = ids, .states = &states}};
  EXPECT_THAT(client_->WriteRowStates(tables), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(Read(ids).exists, Each(0));
}

TEST_F(MovedRowsTest, AnAbsentRowReadsAsItWouldBeCreatedAndIsNot) {
  Create(StateTable("t", Adagrad(0.1f, 0.25f)));
  const std::vector<uint64_t> ids = SomeIds(3);
  const RowStates absent = Read(ids);
  EXPECT_THAT(absent.exists, Each(0));
  TANDEM_ASSERT_OK_AND_ASSIGN(auto tables, client_->ListTables());
  EXPECT_EQ(tables[0].statistics().rows(), 0);
  std::vector<float> rows(ids.size() * kStateDim);
  TANDEM_ASSERT_OK(client_->Pull(0, false, {{.table = "t", .ids = ids, .rows = rows.data()}}));
  const RowStates created = Read(ids);
  EXPECT_THAT(created.exists, Each(1));
  EXPECT_EQ(absent.values, created.values);
  EXPECT_EQ(absent.row(1)[kStateDim], 0.25f);
}

TEST_F(MovedRowsTest, AWrittenRowIsCreatedWhateverAdmissionSays) {
  v1::TableConfig config = StateTable("t", Sgd(0.1f));
  *config.mutable_admission() = AdmitAfter(200, 4096);
  Create(config);
  const std::vector<uint64_t> ids = SomeIds(3);
  RowStates states = Read(ids);
  for (float& value : states.values) value = 2.0f;
  TANDEM_ASSERT_OK(client_->WriteRowStates("t", ids, states));
  TrainOnServers(*client_, ids, 0, 1);  // a gradient of a row that is not admitted would be dropped
  const RowStates after = Read(ids);
  EXPECT_THAT(after.exists, Each(1));
  EXPECT_NE(after.values, states.values);
}

TEST_F(MovedRowsTest, RowsOfSixteenBitsMoveWithoutAChange) {
  v1::TableConfig config = StateTable("t", Adam(0.1f));
  config.set_row_type(v1::TableConfig::BF16);
  Create(config);
  const std::vector<uint64_t> ids = SomeIds(20);
  TrainOnServers(*client_, ids, 0, 3);
  const RowStates before = Read(ids);
  TANDEM_ASSERT_OK(client_->WriteRowStates("t", ids, before));
  EXPECT_EQ(Read(ids).values, before.values);
  RowStates odd = before;
  odd.row(0)[0] = 1.001f;  // between two numbers of bf16
  TANDEM_ASSERT_OK(client_->WriteRowStates("t", ids, odd));
  EXPECT_EQ(Read(ids).row(0)[0], 1.0f);
}

TEST_F(MovedRowsTest, ARowThatWasEvictedMeanwhileComesBack) {
  v1::TableConfig config = StateTable("t", Adagrad(0.1f));
  *config.mutable_eviction() = EvictAfter(3);
  Create(config);
  const std::vector<uint64_t> ids = SomeIds(2);
  TrainOnServers(*client_, ids, 0, 2);
  const RowStates out = Read(ids);
  const std::vector<uint64_t> others = {1000001, 1000002};
  TrainOnServers(*client_, others, 2, 600);  // each update sweeps one of 256 buckets
  ASSERT_THAT(Read(ids).exists, Each(0));
  TANDEM_ASSERT_OK(client_->WriteRowStates("t", ids, out));
  const RowStates back = Read(ids);
  EXPECT_THAT(back.exists, Each(1));
  EXPECT_EQ(back.values, out.values);
}

TEST_F(MovedRowsTest, ACacheSeesThatARowWasWritten) {
  Create(StateTable("t", Sgd(0.1f)));
  TANDEM_ASSERT_OK(client_->SetCache("t", {.bytes = 1 << 20, .max_uses = 1, .max_age = 0}));
  const std::vector<uint64_t> ids = SomeIds(4);
  std::vector<float> rows(ids.size() * kStateDim);
  const auto pull = [&] {
    TANDEM_ASSERT_OK(client_->Pull(0, false, {{.table = "t", .ids = ids, .rows = rows.data()}}));
  };
  for (int i = 0; i < 4; ++i) pull();
  RowStates states = Read(ids);
  for (float& value : states.values) value = 3.0f;
  TANDEM_ASSERT_OK(client_->WriteRowStates("t", ids, states));
  for (int i = 0; i < 3; ++i) {
    pull();
    EXPECT_THAT(rows, Each(3.0f)) << i;
  }
}

TEST_F(MovedRowsTest, ACacheServesNoCopyOfARowThatHasMovedHoweverYoungTheCopy) {
  Create(StateTable("t", Sgd(0.1f)));
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto other, cluster_.Connect());
  TANDEM_ASSERT_OK(other->CreateTable(StateTable("t", Sgd(0.1f))));
  const std::vector<uint64_t> ids = SomeIds(4);
  std::vector<float> rows(ids.size() * kStateDim);
  const auto pull = [&](Client& client) {
    TANDEM_ASSERT_OK(client.Pull(0, false, {{.table = "t", .ids = ids, .rows = rows.data()}}));
  };
  TrainOnServers(*client_, ids, 0, 4);  // rows of a table without updates are not cached
  for (Client* client : {client_.get(), other.get()}) {
    TANDEM_ASSERT_OK(client->SetCache("t", {.bytes = 1 << 20, .max_uses = 1000, .max_age = 10000}));
    for (int i = 0; i < 16; ++i) pull(*client);  // the uses that a copy gains grow as it arrives
    TANDEM_ASSERT_OK_AND_ASSIGN(const CacheStatistics before, client->CacheStatisticsOf("t"));
    ASSERT_GT(before.locally_served, 0u);
  }
  // Both workers take the rows, and one of them returns them.
  RowStates states = Read(ids);
  TANDEM_ASSERT_OK(other->ReadRowStates("t", ids));
  for (float& value : states.values) value = 3.0f;
  TANDEM_ASSERT_OK(client_->WriteRowStates("t", ids, states));
  for (Client* client : {client_.get(), other.get()}) {
    pull(*client);
    EXPECT_THAT(rows, Each(3.0f));
  }
}

TEST_F(MovedRowsTest, ManyRowsMoveInSeveralMessages) {
  Create(StateTable("t", AmsGrad(0.1f)));  // 20 floats a row
  const std::vector<uint64_t> ids = SomeIds(150000);
  RowStates states = Read(ids);
  for (size_t i = 0; i < ids.size(); ++i) states.row(i)[7] = static_cast<float>(i);
  TANDEM_ASSERT_OK(client_->WriteRowStates("t", ids, states));
  EXPECT_EQ(Read(ids).values, states.values);
}

TEST_F(MovedRowsTest, AWriteThatIsRepeatedUndoesNoLaterPush) {
  TANDEM_ASSERT_OK_AND_ASSIGN(client_, cluster_.Connect());
  TANDEM_ASSERT_OK(client_->CreateTable(StateTable("t", Sgd(1.0f))));
  client_.reset();
  // The first response to a write is lost, so that it is sent twice.
  int writes = 0;
  TANDEM_ASSERT_OK_AND_ASSIGN(client_, cluster_.Connect(0, [&writes](absl::string_view method, int64_t) {
    const bool lost = absl::EndsWith(method, "/WriteRowStates") && writes++ == 0;
    return rpc::Fault{.kind = lost ? rpc::Fault::Kind::kFailAfter : rpc::Fault::Kind::kNone};
  }));
  TANDEM_ASSERT_OK(client_->CreateTable(StateTable("t", Sgd(1.0f))));
  const std::vector<uint64_t> ids = SomeIds(1);
  RowStates states = Read(ids);
  for (float& value : states.values) value = 3.0f;
  TANDEM_ASSERT_OK(client_->WriteRowStates("t", ids, states));
  EXPECT_EQ(writes, 2);
  EXPECT_EQ(Read(ids).values, states.values);
}

TEST_F(MovedRowsTest, StatesThatDoNotFitTheTableAreRefusedAndNothingChanges) {
  Create(StateTable("t", Adagrad(0.1f)));
  const std::vector<uint64_t> ids = SomeIds(2);
  TrainOnServers(*client_, ids, 0, 1);
  const RowStates before = Read(ids);
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  RowStates states = before;
  states.values.pop_back();
  EXPECT_THAT(client_->WriteRowStates("t", ids, states), StatusIs(kInvalid, HasSubstr("19 values")));
  states = before;
  states.dim = 4;
  states.state_floats = 6;
  EXPECT_THAT(client_->WriteRowStates("t", ids, states),
              StatusIs(kInvalid, AllOf(HasSubstr("4 weights and 6 floats"), HasSubstr("5 and 5"))));
  states = before;
  states.row(1)[2] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(client_->WriteRowStates("t", ids, states), StatusIs(kInvalid, HasSubstr("nan")));
  states = before;
  states.values[0] = 9.0f;
  EXPECT_THAT(client_->WriteRowStates("t", {ids[0], ids[0]}, states),
              StatusIs(kInvalid, HasSubstr("occurs twice")));
  EXPECT_EQ(Read(ids).values, before.values);
  EXPECT_THAT(client_->ReadRowStates("nobody", ids), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(MovedRowsTest, AScanReturnsEveryRowOnceWithItsState) {
  Create(StateTable("t", Adagrad(0.1f)));
  const std::vector<uint64_t> ids = SomeIds(1000);
  TrainOnServers(*client_, ids, 0, 2);
  const RowStates expected = Read(ids);
  for (const size_t max_rows : {size_t{1}, size_t{7}, size_t{100000}}) {
    std::map<uint64_t, std::vector<float>> rows;
    ScanPosition from;
    for (bool at_end = false; !at_end;) {
      TANDEM_ASSERT_OK_AND_ASSIGN(const ScannedRows scanned, client_->ScanRows("t", from, max_rows));
      ASSERT_LE(scanned.ids.size(), max_rows);
      ASSERT_THAT(scanned.states.exists, Each(1));
      for (size_t i = 0; i < scanned.ids.size(); ++i) {
        const float* row = scanned.states.row(i);
        ASSERT_TRUE(rows.try_emplace(scanned.ids[i], row, row + scanned.states.row_floats()).second);
      }
      from = scanned.next;
      at_end = scanned.at_end;
    }
    ASSERT_EQ(rows.size(), ids.size());
    for (size_t i = 0; i < ids.size(); ++i) {
      EXPECT_THAT(rows[ids[i]], ElementsAreArray(expected.row(i), expected.row_floats()));
    }
  }
  EXPECT_THAT(client_->ScanRows("nobody", {}, 1), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(MovedRowsTest, AScanEndsAfterTheLargestId) {
  Create(StateTable("t", Sgd(0.1f)));
  const std::vector<uint64_t> ids = {0, ~uint64_t{0}};
  TrainOnServers(*client_, ids, 0, 1);
  std::vector<uint64_t> scanned_ids;
  ScanPosition from;
  for (bool at_end = false; !at_end;) {
    TANDEM_ASSERT_OK_AND_ASSIGN(const ScannedRows scanned, client_->ScanRows("t", from, 1));
    scanned_ids.insert(scanned_ids.end(), scanned.ids.begin(), scanned.ids.end());
    ASSERT_LE(scanned_ids.size(), 2u);
    from = scanned.next;
    at_end = scanned.at_end;
  }
  EXPECT_THAT(scanned_ids, UnorderedElementsAreArray(ids));
}

TEST_F(MovedRowsTest, AnEarlierProcessOfTheWorkerMayNotWrite) {
  Create(StateTable("t", Sgd(0.1f)));
  const std::vector<uint64_t> ids = SomeIds(2);
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto restarted,
                              Client::Connect(cluster_.Channels(), {.worker = 0, .epoch = 2}));
  TANDEM_ASSERT_OK(restarted->CreateTable(StateTable("t", Sgd(0.1f))));
  TANDEM_ASSERT_OK(restarted->WriteRowStates("t", ids, Read(ids)));
  EXPECT_THAT(client_->WriteRowStates("t", ids, Read(ids)),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("older process")));
}

}  // namespace
}  // namespace tandem::ps
