// SPDX-License-Identifier: Apache-2.0
// The share of a global batch that a push carries scales the regularization of its update.

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/ps/server/driver.h"
#include "tests/ps/server/table/sum_table.h"
#include "tests/testing/status_matchers.h"

namespace tandem::ps::testing {
namespace {

constexpr uint32_t kSharing = 2;  // workers

// A row that is 1 and loses a hundredth in one update with a gradient of zero.
v1::TableConfig DecayingTable(v1::UpdateMode mode, bool decoupled) {
  v1::OptimizerConfig optimizer = Sgd(0.1f);
  decoupled ? optimizer.set_weight_decay(0.1f) : optimizer.set_l2(0.1f);
  v1::TableConfig config = TestTable("user", 1, kSharing, mode, optimizer);
  *config.mutable_initializer() = Constant(1.0f);
  return config;
}

// Returns the row after one step in which every worker pushes a gradient of zero.
float AfterOneStep(v1::UpdateMode mode, bool decoupled, float share) {
  Driver driver;
  TANDEM_EXPECT_OK(driver.CreateTable(DecayingTable(mode, decoupled)));
  TANDEM_EXPECT_OK(driver.Pull(0, 0, {{"user", {42}}}));
  for (uint32_t worker = 0; worker < kSharing; ++worker) {
    TANDEM_EXPECT_OK(driver.Push({.worker = worker, .batch_share = share}, {One(0)}));
  }
  return Read(driver, 1);
}

TEST(BatchShare, AsynchronousWorkersRegularizeAsMuchAsOneSynchronousUpdate) {
  for (const bool decoupled : {false, true}) {
    const float sync = AfterOneStep(Sync(), decoupled, 0.5f);
    EXPECT_FLOAT_EQ(sync, 0.99f);
    // Two steps of a half are one step but for the square of a half.
    for (const v1::UpdateMode& mode : {Async(), Bounded(1)}) {
      EXPECT_NEAR(AfterOneStep(mode, decoupled, 0.5f), sync, 3e-5);
      EXPECT_NEAR(AfterOneStep(mode, decoupled, 0), 0.99f * 0.99f, 1e-6) << "without a share";
    }
    EXPECT_EQ(AfterOneStep(Gba(4), decoupled, 0.5f), sync) << "both pushes are one update";
    EXPECT_EQ(AfterOneStep(Gba(4), decoupled, 0), sync) << "the sum of shares is at most 1";
    EXPECT_NEAR(AfterOneStep(Gba(4, 1), decoupled, 0.5f), sync, 3e-5);
  }
}

TEST(BatchShare, ASynchronousUpdateOfAllWorkersHasItsBitsWhateverTheShares) {
  const float without = AfterOneStep(Sync(), false, 0);
  for (const float share : {0.1f, 1.0f / 3, 1.0f}) EXPECT_EQ(AfterOneStep(Sync(), false, share), without);
}

TEST(BatchShare, APartOfAGlobalBatchThatIsFlushedRegularizesByItsShare) {
  Driver driver;
  TANDEM_ASSERT_OK(driver.CreateTable(DecayingTable(Gba(4), false)));
  TANDEM_ASSERT_OK(driver.Pull(0, 0, {{"user", {42}}}));
  TANDEM_ASSERT_OK(driver.Push({.batch_share = 0.5f}, {One(0)}));
  TANDEM_ASSERT_OK(driver.Flush("user"));
  EXPECT_FLOAT_EQ(Read(driver, 1), 0.995f);
}

}  // namespace
}  // namespace tandem::ps::testing
