// SPDX-License-Identifier: Apache-2.0
#include "worker/trainer/training_plan.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace tandem::worker {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Schema FourFeatures() {
  Schema schema;
  schema.sparse = {{.column = "user"},
                   {.column = "item", .shared_as = "item"},
                   {.column = "city"},
                   {.column = "history", .separator = '|', .shared_as = "item"}};
  return schema;
}

std::unique_ptr<Model> MakeModel(const std::string& kind) {
  return *CreateModel({.kind = kind, .num_sparse = 4, .dim = 8});
}

TEST(TrainingPlanTest, FeaturesWithoutATableOfTheirOwnShareTheDefaultOne) {
  JobSpec job;
  job.model.dim = 8;
  job.train.mode = ps::Bounded(3);
  job.tables = {{.name = "items", .features = {"history", "item"}}};
  TANDEM_ASSERT_OK_AND_ASSIGN(TrainingPlan plan, PlanJob(job, FourFeatures(), *MakeModel("wide_deep"), 5));
  ASSERT_EQ(plan.lookup.tables.size(), 3u);
  EXPECT_EQ(plan.lookup.tables[0].name, "items");
  EXPECT_THAT(plan.lookup.tables[0].features, ElementsAre(3, 1));
  EXPECT_EQ(plan.lookup.tables[1].name, "embedding");
  EXPECT_THAT(plan.lookup.tables[1].features, ElementsAre(0, 2));
  EXPECT_EQ(plan.lookup.tables[2].name, "wide");
  EXPECT_TRUE(plan.lookup.tables[2].wide);
  EXPECT_THAT(plan.lookup.tables[2].features, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(plan.lookup.shared_features, ElementsAre(ElementsAre(1, 3)));
  ASSERT_EQ(plan.tables.size(), 3u);
  for (const v1::TableConfig& table : plan.tables) {
    EXPECT_EQ(table.num_workers(), 5u);
    EXPECT_EQ(table.update_mode().staleness(), 3u);
  }
  EXPECT_EQ(plan.tables[0].dim(), 8u);
  EXPECT_EQ(plan.tables[2].dim(), 1u);
  EXPECT_NE(plan.tables[0].seed(), plan.tables[1].seed());  // tables start from different values
}

TEST(TrainingPlanTest, AModelGetsOnlyTheTablesItLooksInto) {
  JobSpec job;
  job.model.dim = 8;
  TANDEM_ASSERT_OK_AND_ASSIGN(TrainingPlan lr, PlanJob(job, FourFeatures(), *MakeModel("lr"), 1));
  ASSERT_EQ(lr.tables.size(), 1u);
  EXPECT_EQ(lr.tables[0].name(), "wide");
  TANDEM_ASSERT_OK_AND_ASSIGN(TrainingPlan dlrm, PlanJob(job, FourFeatures(), *MakeModel("dlrm"), 1));
  ASSERT_EQ(dlrm.tables.size(), 1u);
  EXPECT_EQ(dlrm.tables[0].name(), "embedding");
}

TEST(TrainingPlanTest, FeaturesArePlacedAsTheTableOrTheirListSays) {
  JobSpec job;
  job.model.dim = 8;
  job.train.mode = ps::Async();
  job.embedding.placement = ps::Placement::kSharded;
  job.embedding.replicated_features = {"city"};
  job.embedding.l2_scope = ps::L2Scope::kAll;
  job.wide.sharded_features = {"user"};
  TANDEM_ASSERT_OK_AND_ASSIGN(TrainingPlan plan, PlanJob(job, FourFeatures(), *MakeModel("wide_deep"), 2));
  constexpr auto kAuto = ps::Placement::kAuto, kSharded = ps::Placement::kSharded,
                 kReplicated = ps::Placement::kReplicated;
  EXPECT_THAT(plan.lookup.tables[0].placements, ElementsAre(kSharded, kSharded, kReplicated, kSharded));
  EXPECT_THAT(plan.lookup.tables[1].placements, ElementsAre(kSharded, kAuto, kAuto, kAuto));
  ASSERT_EQ(plan.replicas.size(), 2u);
  EXPECT_TRUE(plan.replicas[0].replicated);
  EXPECT_FALSE(plan.replicas[0].by_staleness);
  EXPECT_EQ(plan.replicas[0].l2_scope, ps::L2Scope::kAll);
  EXPECT_TRUE(plan.replicas[1].by_staleness);
  EXPECT_THAT(plan.notes, ElementsAre());

  job.embedding.replicated_features = {"town"};
  EXPECT_THAT(PlanJob(job, FourFeatures(), *MakeModel("wide_deep"), 2),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("replicated_features names 'town', which is not a feature of the table; "
                                 "there are: user, item, city, history")));
}

TEST(TrainingPlanTest, ATableThatCannotHaveReplicatedRowsIsShardedAndTheLogSaysWhy) {
  JobSpec job;
  job.model.dim = 8;
  job.train.mode = ps::Async();
  job.embedding.optimizer.set_clip_global_norm(1.0f);
  job.wide.cache.bytes = 1 << 20;
  TANDEM_ASSERT_OK_AND_ASSIGN(TrainingPlan plan, PlanJob(job, FourFeatures(), *MakeModel("wide_deep"), 2));
  EXPECT_FALSE(plan.replicas[0].replicated);
  EXPECT_FALSE(plan.replicas[1].replicated);
  EXPECT_THAT(plan.notes, ElementsAre(HasSubstr("clip_global_norm"), HasSubstr("cache")));
}

TEST(TrainingPlanTest, NamesWhatCannotBe) {
  JobSpec job;
  job.model.dim = 8;
  job.tables = {{.name = "items", .features = {"itme"}}};
  EXPECT_THAT(
      PlanJob(job, FourFeatures(), *MakeModel("dlrm"), 1),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("'itme', which the data does not have; there are: user, item, city, history")));
  job.tables = {{.name = "a", .features = {"item"}}, {.name = "b", .features = {"item"}}};
  EXPECT_THAT(PlanJob(job, FourFeatures(), *MakeModel("dlrm"), 1),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("two tables, 'a' and 'b'")));
  job.tables.clear();
  job.pooling = PoolingPlace::kServer;
  Schema schema = FourFeatures();
  schema.format = DataFormat::kLibfm;
  EXPECT_THAT(PlanJob(job, schema, *MakeModel("dlrm"), 1),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("embedding.pooling must be 'worker'")));
}

}  // namespace
}  // namespace tandem::worker
