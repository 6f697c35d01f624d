// SPDX-License-Identifier: Apache-2.0
#include "ps/replicated/replicated_rows.h"

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/table.h"
#include "tests/testing/status_matchers.h"

namespace tandem::ps {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr size_t kDim = 3;

v1::TableConfig Table(v1::OptimizerConfig optimizer) {
  return EmbeddingTable("t", kDim, std::move(optimizer), Zeros());
}

std::unique_ptr<ReplicatedRows> Make(const v1::TableConfig& config, L2Scope scope = L2Scope::kTouched) {
  auto rows = ReplicatedRows::Create(config, scope);
  EXPECT_THAT(rows, tandem::testing::IsOk());
  return *std::move(rows);
}

// Rows whose numbers follow from id and position.
MovedRows Rows(const std::vector<uint64_t>& ids, size_t state_floats) {
  MovedRows rows;
  rows.ids = ids;
  for (const uint64_t id : ids) {
    for (size_t d = 0; d < kDim; ++d) rows.weights.push_back(static_cast<float>(id) + 0.1f * d);
    for (size_t d = 0; d < state_floats; ++d) rows.state.push_back(static_cast<float>(d) + 0.5f);
  }
  return rows;
}

TEST(ReplicatedRowsTest, AnUpdateIsTheTableOptimizersForEveryKind) {
  for (const absl::string_view kind : OptimizerKinds()) {
    v1::OptimizerConfig config = DefaultOptimizer(kind);
    config.set_l2(0.01f);
    config.set_clip_row_norm(0.5f);
    const v1::TableConfig table = Table(config);
    std::unique_ptr<ReplicatedRows> rows = Make(table);
    const MovedRows start = Rows({7, 8, 9}, rows->state_floats());
    TANDEM_ASSERT_OK(rows->Change({}, start));
    const float gradient[] = {0.5f, -1.0f, 2.0f};
    for (int step = 1; step <= 3; ++step) {
      rows->AddGradient(rows->Find(8), gradient);
      TANDEM_ASSERT_OK(rows->Apply(0.5f, static_cast<uint64_t>(step)));
    }
    auto optimizer = *MakeOptimizer(config);
    MovedRows expected = start;
    for (int step = 0; step < 3; ++step) {
      const RowUpdate update{expected.weights.data() + kDim, expected.state.data() + rows->state_floats(),
                             gradient};
      optimizer->Update({&update, 1}, kDim, 0.5f);
    }
    const MovedRows now = rows->Read({0, 1, 2});
    EXPECT_EQ(now.weights, expected.weights) << kind;
    EXPECT_EQ(now.state, expected.state) << kind;
  }
}

TEST(ReplicatedRowsTest, L2ReachesUntouchedRowsOnlyWithScopeAll) {
  v1::OptimizerConfig config = Sgd(1.0f);
  config.set_l2(0.5f);
  for (const L2Scope scope : {L2Scope::kTouched, L2Scope::kAll}) {
    std::unique_ptr<ReplicatedRows> rows = Make(Table(config), scope);
    TANDEM_ASSERT_OK(rows->Change({}, Rows({2, 4}, 0)));
    const float gradient[] = {0, 0, 0};
    rows->AddGradient(0, gradient);
    TANDEM_ASSERT_OK(rows->Apply(1.0f, 1));
    EXPECT_EQ(rows->weights(0)[0], 1.0f);
    EXPECT_EQ(rows->weights(1)[0], scope == L2Scope::kAll ? 2.0f : 4.0f);
  }
}

TEST(ReplicatedRowsTest, BothWaysToSumGiveTheSameBits) {
  const v1::TableConfig table = Table(Adam(0.1f));
  auto worker = [&](int rank) {
    std::unique_ptr<ReplicatedRows> rows = Make(table);
    EXPECT_TRUE(rows->Change({}, Rows({1, 2, 3}, rows->state_floats())).ok());
    const float gradient[] = {0.1f * (rank + 1), 0.3f, -0.7f / (rank + 1)};
    rows->AddGradient(1, gradient);
    if (rank == 1) rows->AddGradient(2, gradient);
    return rows;
  };
  std::unique_ptr<ReplicatedRows> dense[] = {worker(0), worker(1)}, sparse[] = {worker(0), worker(1)};
  std::vector<float> sum(dense[0]->exchange().begin(), dense[0]->exchange().end());
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += dense[1]->exchange()[i];
  std::vector<float> packed[2];
  for (int r = 0; r < 2; ++r) sparse[r]->TakeTouched(&packed[r]);
  EXPECT_EQ(packed[1].size(), 2 * sparse[1]->packed_floats());
  for (int r = 0; r < 2; ++r) {
    std::copy(sum.begin(), sum.end(), dense[r]->exchange().begin());
    TANDEM_ASSERT_OK(sparse[r]->AddTouched(packed[0]));
    TANDEM_ASSERT_OK(sparse[r]->AddTouched(packed[1]));
    TANDEM_ASSERT_OK(dense[r]->Apply(1.0f, 1));
    TANDEM_ASSERT_OK(sparse[r]->Apply(1.0f, 1));
    EXPECT_EQ(dense[r]->Read({0, 1, 2}).weights, dense[0]->Read({0, 1, 2}).weights);
    EXPECT_EQ(sparse[r]->Read({0, 1, 2}).weights, dense[0]->Read({0, 1, 2}).weights);
    EXPECT_THAT(sparse[r]->touches(), ElementsAre(0.0f, 2.0f, 1.0f));
  }
}

TEST(ReplicatedRowsTest, ChangeKeepsTheRowsThatStayAndTheirState) {
  std::unique_ptr<ReplicatedRows> rows = Make(Table(Adagrad(0.1f)));
  TANDEM_ASSERT_OK(rows->Change({}, Rows({1, 2, 3}, kDim)));
  const float gradient[] = {1, 2, 3};
  rows->AddGradient(2, gradient);
  TANDEM_ASSERT_OK(rows->Apply(1.0f, 1));
  const MovedRows three = rows->Read({2});
  TANDEM_ASSERT_OK(rows->Change({1, 77}, Rows({5}, kDim)));
  EXPECT_THAT(rows->ids(), ElementsAre(2, 3, 5));
  EXPECT_EQ(rows->Find(1), ReplicatedRows::kAbsent);
  EXPECT_EQ(rows->Read({rows->Find(3)}).weights, three.weights);
  EXPECT_EQ(rows->Read({rows->Find(3)}).state, three.state);
  EXPECT_EQ(rows->weights(2)[0], 5.0f);
  EXPECT_THAT(rows->touches(), ElementsAre(0.0f, 1.0f, 0.0f));
  // A row may leave and come back with other values in one change.
  TANDEM_ASSERT_OK(rows->Change({2, 3, 5}, Rows({3}, kDim)));
  EXPECT_EQ(rows->weights(0)[0], 3.0f);
}

TEST(ReplicatedRowsTest, RefusesWhatDoesNotFit) {
  std::unique_ptr<ReplicatedRows> rows = Make(Table(Sgd(0.1f)));
  MovedRows wrong = Rows({1}, 0);
  wrong.weights.pop_back();
  EXPECT_THAT(rows->Change({}, wrong), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("2 weights")));
  TANDEM_ASSERT_OK(rows->Change({}, Rows({1}, 0)));
  EXPECT_THAT(rows->Change({}, Rows({1}, 0)), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(rows->AddTouched({1.0f}), StatusIs(absl::StatusCode::kDataLoss));
  const float infinite[] = {0, std::numeric_limits<float>::infinity(), 0};
  rows->AddGradient(0, infinite);
  EXPECT_THAT(rows->Apply(1.0f, 1), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not finite")));
  EXPECT_EQ(rows->weights(0)[0], 1.0f);

  v1::OptimizerConfig clipped = Sgd(0.1f);
  clipped.set_clip_global_norm(1.0f);
  EXPECT_THAT(ReplicatedRows::Create(Table(clipped), L2Scope::kTouched).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("clip_global_norm")));
}

}  // namespace
}  // namespace tandem::ps
