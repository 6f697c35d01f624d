// When pulls wait, when pushes are applied, and what the rows are then.

#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/ps/server/driver.h"
#include "tests/testing/status_matchers.h"

namespace tandem::ps::testing {
namespace {

using ::tandem::testing::IsOk;
using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Plain SGD with learning rate 1 from zeros: a row is minus the sum of its gradients, so that sums can be read off.
v1::TableConfig SumTable(uint32_t workers, v1::UpdateMode mode) {
  v1::TableConfig config = TestTable("user", 1, workers, mode, Sgd(1.0f));
  *config.mutable_initializer() = Zeros();
  return config;
}
PushOf One(float gradient, uint64_t version = 0) {
  return {.table = "user", .dim = 1, .ids = {42}, .gradients = {gradient}, .pulled_version = version};
}
float Read(Driver& driver, uint64_t step = 0) {
  absl::StatusOr<Rows> rows = driver.Pull(0, step, {{"user", {42}}}, /*read_only=*/true);
  return rows.ok() ? rows->slices[0][0] : NAN;
}

TEST(UpdateModes, SyncAppliesAStepWhenEveryWorkerHasPushedIt) {
  Driver driver;
  TANDEM_ASSERT_OK(driver.CreateTable(SumTable(2, Sync())));
  TANDEM_ASSERT_OK(driver.Pull(0, 0, {{"user", {42}}}));
  TANDEM_ASSERT_OK(driver.Push({.worker = 0, .step = 0}, {One(1)}));
  EXPECT_EQ(Read(driver), 0.0f);
  auto waiting = driver.StartPull(0, 1, {{"user", {42}}});
  EXPECT_FALSE(waiting->answered());
  EXPECT_EQ(driver.server().parked_calls(), 1);
  TANDEM_ASSERT_OK(driver.Push({.worker = 1, .step = 0}, {One(2)}));
  absl::StatusOr<Rows> rows = ParseRows(waiting->Wait());
  TANDEM_ASSERT_OK(rows);
  EXPECT_THAT(rows->slices[0], ElementsAre(-3.0f));
  EXPECT_EQ(rows->versions[0], 1);
  EXPECT_EQ(driver.server().parked_calls(), 0);
}

}  // namespace
}  // namespace tandem::ps::testing
