// SPDX-License-Identifier: Apache-2.0
// What servers refuse of the calls that move rows.

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/shard_map.h"
#include "tests/ps/server/driver.h"
#include "tests/testing/status_matchers.h"

namespace tandem::ps::testing {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

class RowStatesServiceTest : public ::testing::Test {
 protected:
  RowStatesServiceTest() {
    TANDEM_EXPECT_OK(driver_.CreateTable(TestTable("user", 2, 2, Async())));  // Adagrad: 4 floats a row
    v1::TableConfig dense = DenseTable("bias", 6, Sgd(0.1f), Zeros());
    dense.set_dim(2);
    dense.set_num_workers(1);
    TANDEM_EXPECT_OK(driver_.CreateTable(dense));
  }
  static v1::WriteRowStatesRequest Write(const std::vector<uint64_t>& ids, const std::vector<float>& values) {
    v1::WriteRowStatesRequest request;
    request.set_epoch(1);
    request.set_sequence(1);
    request.set_table("user");
    request.mutable_ids()->Add(ids.begin(), ids.end());
    request.set_dim(2);
    request.set_state_floats(2);
    request.mutable_values()->Add(values.begin(), values.end());
    return request;
  }
  absl::StatusOr<v1::WriteRowStatesResponse> Send(const v1::WriteRowStatesRequest& request) {
    return driver_.Call<v1::WriteRowStatesResponse>("WriteRowStates", request);
  }

  Driver driver_;
};

TEST_F(RowStatesServiceTest, AMalformedWriteIsRefusedAndTakesNoSequence) {
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  const std::vector<float> row = {1, 2, 3, 4};
  EXPECT_THAT(Send(Write({7, 8}, row)), StatusIs(kInvalid, HasSubstr("4 values for 2 rows of 4 floats")));
  EXPECT_THAT(Send(Write({7}, {1, 2, 3, INFINITY})), StatusIs(kInvalid, HasSubstr("id 7 has the value inf")));
  EXPECT_THAT(Send(Write({7, 7}, {1, 2, 3, 4, 1, 2, 3, 4})), StatusIs(kInvalid, HasSubstr("occurs twice")));
  v1::WriteRowStatesRequest request = Write({1}, {1, 2});
  request.set_table("bias");  // a sync table
  request.set_state_floats(0);
  request.set_worker(1);
  EXPECT_THAT(Send(request), StatusIs(kInvalid, HasSubstr("has 1 workers")));
  request = Write({7}, row);
  request.set_sequence(0);
  EXPECT_THAT(Send(request), StatusIs(kInvalid, HasSubstr("sequence 0")));
  request = Write({7}, row);
  request.set_state_floats(1);
  EXPECT_THAT(Send(request), StatusIs(kInvalid, HasSubstr("(adagrad)")));
  request = Write({7}, row);
  request.set_table("nobody");
  EXPECT_THAT(Send(request), StatusIs(absl::StatusCode::kNotFound));
  request = Write({3}, {1, 2});
  request.set_table("bias");
  request.set_state_floats(0);
  EXPECT_THAT(Send(request), StatusIs(kInvalid, HasSubstr("outside this dense table of 3 rows")));
  EXPECT_EQ(driver_.Table("user").statistics().rows(), 0);
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto first, Send(Write({7}, row)));
  EXPECT_FALSE(first.duplicate());
}

TEST_F(RowStatesServiceTest, AWriteThatComesTwiceUndoesNoPushInBetween) {
  const v1::WriteRowStatesRequest write = Write({7}, {1, 2, 3, 4});
  TANDEM_ASSERT_OK(Send(write));
  TANDEM_ASSERT_OK(driver_.Push({.sequence = 2}, {{"user", 2, {7}, {1, 1}}}));
  const auto row = [&] { return driver_.Pull(0, 1, {{"user", {7}}})->slices[0]; };
  const std::vector<float> pushed = row();
  EXPECT_NE(pushed, (std::vector<float>{1, 2}));
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto again, Send(write));
  EXPECT_TRUE(again.duplicate());
  EXPECT_EQ(row(), pushed);
}

TEST_F(RowStatesServiceTest, RowsOfAnotherServerAreRefused) {
  Driver second({.index = 1, .num_servers = 2});
  TANDEM_ASSERT_OK(second.CreateTable(TestTable("user", 2, 1, Async())));
  const ShardMap map = ShardMap::Even(2);
  uint64_t foreign = 0;
  while (map.OwnerOf(foreign) != 0) ++foreign;
  v1::ReadRowStatesRequest read;
  read.set_table("user");
  read.add_ids(foreign);
  EXPECT_THAT(second.Call<v1::ReadRowStatesResponse>("ReadRowStates", read),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("belongs to server 0")));
  EXPECT_THAT(second.Call<v1::WriteRowStatesResponse>("WriteRowStates", Write({foreign}, {1, 2, 3, 4})),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("belongs to server 0")));
}

TEST_F(RowStatesServiceTest, AReadThatExpandsBeyondAMessageIsRefused) {
  TANDEM_ASSERT_OK(driver_.CreateTable(TestTable("wide", 65536, 1, Async())));
  v1::ReadRowStatesRequest read;
  read.set_table("wide");
  for (uint64_t id = 0; id < 1000; ++id) read.add_ids(id);
  EXPECT_THAT(driver_.Call<v1::ReadRowStatesResponse>("ReadRowStates", read),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("move fewer at a time")));
}

// Processes of no job may read.
TEST_F(RowStatesServiceTest, AReadDoesNotDisturbTheMeasurementOfRowStaleness) {
  const auto measured = [this] {
    v1::FrequentlyUpdatedRowsRequest request;
    request.set_table("user");
    return driver_.Call<v1::FrequentlyUpdatedRowsResponse>("FrequentlyUpdatedRows", request)->updates();
  };
  const auto push = [this](uint64_t step) {
    TANDEM_ASSERT_OK(driver_.Push({.step = step}, {{"user", 2, {7}, {1, 1}}}));
  };
  for (uint64_t step = 0; step < 40; ++step) push(step);
  EXPECT_EQ(measured(), 40);
  v1::ReadRowStatesRequest read;
  read.set_table("user");
  read.add_ids(7);
  TANDEM_ASSERT_OK(driver_.Call<v1::ReadRowStatesResponse>("ReadRowStates", read));
  push(40);
  EXPECT_EQ(measured(), 41);
}

TEST_F(RowStatesServiceTest, AThresholdThatIsNoNumberIsRefused) {
  v1::FrequentlyUpdatedRowsRequest request;
  request.set_table("user");
  for (const double threshold : {-0.5, std::numeric_limits<double>::quiet_NaN()}) {
    request.set_min_row_staleness(threshold);
    EXPECT_THAT(driver_.Call<v1::FrequentlyUpdatedRowsResponse>("FrequentlyUpdatedRows", request),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("min_row_staleness")));
  }
}

}  // namespace
}  // namespace tandem::ps::testing
