// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_PS_SERVER_COUNT_PUSHES_H_
#define TANDEM_TESTS_PS_SERVER_COUNT_PUSHES_H_

// Pushes that are easy to count, and one change of each kind that a durable server must keep.

#include <cstdint>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/ps/server/driver.h"
#include "tests/testing/status_matchers.h"

namespace tandem::ps::testing {

inline constexpr uint64_t kShared = 7;
inline uint64_t PrivateRow(uint32_t worker, uint64_t step) { return 1000 + (uint64_t{worker} << 40) + step; }

// Returns a table whose rows count the pushes of CountPush.
inline v1::TableConfig CountTable(uint32_t workers, const v1::UpdateMode& mode,
                                  const std::string& name = "user") {
  v1::TableConfig config = TestTable(name, 1, workers, mode, Sgd(1.0f));
  *config.mutable_initializer() = Zeros();
  return config;
}
// Adds 1 to the shared row and to a row of the push's own.
inline PushOf CountPush(uint32_t worker, uint64_t step) {
  return {.table = "user", .dim = 1, .ids = {kShared, PrivateRow(worker, step)}, .gradients = {-1, -1}};
}
// Returns the value of a row of a table of dim 1.
inline float CountOf(Driver& server, uint64_t id, const std::string& table = "user", uint64_t step = 0) {
  const absl::StatusOr<Rows> rows = server.Pull(0, step, {{table, {id}}}, /*read_only=*/true);
  TANDEM_CHECK_MSG(rows.ok(), rows.status().ToString());
  return rows->slices[0][0];
}

// Creates and drops tables, pushes, flushes, changes a mode, begins a push epoch, registers and writes rows.
class EveryChange {
 public:
  void Make(Driver& server) {
    TANDEM_ASSERT_OK(server.CreateTable(CountTable(2, Gba(100, 8))));
    TANDEM_ASSERT_OK(server.CreateTable(CountTable(2, Async(), "item")));
    uint64_t sequence = 0;
    for (const char* name : {"gone", "again"}) {
      TANDEM_ASSERT_OK(server.CreateTable(CountTable(2, Sync(), name)));
      TANDEM_ASSERT_OK(server.Push({.worker = 1, .sequence = ++sequence}, {{name, 1, {kShared}, {-1}}}));
      TANDEM_ASSERT_OK(server.DropTable(name));
    }
    TANDEM_ASSERT_OK(server.CreateTable(TestTable("again", 2, 2, Async(), Sgd(1.0f))));
    TANDEM_ASSERT_OK(server.CreateTable(CountTable(2, Sync(), "late"), /*first_step=*/70));
    for (uint64_t step = 0; step < 5; ++step) {
      TANDEM_ASSERT_OK(server.Push({.worker = 0, .step = step}, {CountPush(0, step)}));
    }
    TANDEM_ASSERT_OK(server.Flush("user"));
    TANDEM_ASSERT_OK(server.Push({.worker = 0, .step = 5}, {CountPush(0, 5)}));
    TANDEM_ASSERT_OK(server.SetUpdateMode("user", Bounded(2)));
    epoch_.set_worker(1);
    epoch_.set_token(99);
    TANDEM_ASSERT_OK_AND_ASSIGN(started_, server.Call<v1::StartPushEpochResponse>("StartPushEpoch", epoch_));
    ann_.set_name("ann");
    TANDEM_ASSERT_OK(server.Call<v1::RegisterResponse>("Register", ann_));
    write_.set_table("item");
    write_.set_worker(1);
    write_.set_epoch(epoch());
    write_.set_sequence(1);
    write_.set_dim(1);
    write_.add_ids(3);
    write_.add_values(42);
    TANDEM_ASSERT_OK(server.Call<v1::WriteRowStatesResponse>("WriteRowStates", write_));
  }
  // The push epoch that worker 1 has begun.
  uint64_t epoch() const { return started_.epoch(); }

  // Expects that the server has all of it.
  void ExpectKept(Driver& server) const {
    EXPECT_EQ(server.Table("user").config().update_mode().kind(), v1::UpdateMode::BOUNDED);
    EXPECT_EQ(CountOf(server, kShared), 6.0f);
    EXPECT_EQ(server.Table("gone").config().name(), "");
    EXPECT_EQ(CountOf(server, 1, "late", /*step=*/70), 0.0f);
    EXPECT_EQ(server.Table("again").config().dim(), 2u);
    EXPECT_EQ(server.Table("again").statistics().version(), 0u);
    EXPECT_EQ(CountOf(server, 3, "item"), 42.0f);
    TANDEM_ASSERT_OK_AND_ASSIGN(const auto repeated,
                                server.Call<v1::StartPushEpochResponse>("StartPushEpoch", epoch_));
    EXPECT_EQ(repeated.epoch(), epoch());
    EXPECT_THAT(server.Push({.worker = 1, .step = 0, .epoch = epoch() - 1}, {CountPush(1, 0)}),
                tandem::testing::StatusIs(absl::StatusCode::kFailedPrecondition));
    TANDEM_ASSERT_OK_AND_ASSIGN(const auto written,
                                server.Call<v1::WriteRowStatesResponse>("WriteRowStates", write_));
    EXPECT_TRUE(written.duplicate());
    v1::RegisterRequest bob;
    bob.set_name("bob");
    TANDEM_ASSERT_OK_AND_ASSIGN(const auto first, server.Call<v1::RegisterResponse>("Register", ann_));
    TANDEM_ASSERT_OK_AND_ASSIGN(const auto second, server.Call<v1::RegisterResponse>("Register", bob));
    EXPECT_EQ(first.worker(), 0u);
    EXPECT_EQ(second.worker(), 1u);
  }

 private:
  v1::StartPushEpochRequest epoch_;
  v1::StartPushEpochResponse started_;
  v1::RegisterRequest ann_;
  v1::WriteRowStatesRequest write_;
};

}  // namespace tandem::ps::testing

#endif  // TANDEM_TESTS_PS_SERVER_COUNT_PUSHES_H_
