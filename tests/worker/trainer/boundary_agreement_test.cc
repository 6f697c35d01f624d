// SPDX-License-Identifier: Apache-2.0
#include "worker/trainer/boundary_agreement.h"

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "base/clock.h"
#include "cluster/store/memory_store.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "worker/trainer/segment_reader.h"

namespace tandem::worker {
namespace {

constexpr uint64_t kUnbounded = uint64_t{1} << 40;

// Delivers empty batches without end.
class EndlessReader : public BatchReader {
 public:
  absl::StatusOr<bool> Next(Batch*) override { return true; }
  uint64_t malformed_lines() const override { return 0; }
};

// One worker, whose steps take as long as the test says.
class BoundaryAgreementTest : public ::testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<std::unique_ptr<collectives::ProcessGroup>> group =
        collectives::InitProcessGroup(&store_, {.rank = 0, .world_size = 1, .timeout = absl::Seconds(30)});
    TANDEM_ASSERT_OK(group.status());
    group_ = *std::move(group);
  }
  // Trains one batch in `duration`. Returns false at the end of the segment.
  bool Step(BoundaryAgreement& boundary, absl::Duration duration) {
    Batch batch;
    if (!reader_.Next(&batch).value()) return false;
    clock_.Advance(duration);
    TANDEM_EXPECT_OK(boundary.AfterStep(&reader_));
    return true;
  }
  void Steps(BoundaryAgreement& boundary, int steps, absl::Duration duration) {
    for (int i = 0; i < steps; ++i) ASSERT_TRUE(Step(boundary, duration)) << i;
  }

  SimulatedClock clock_;
  cluster::MemoryStore store_;
  std::unique_ptr<collectives::ProcessGroup> group_;
  EndlessReader endless_;
  SegmentReader reader_{&endless_, 0};
};

TEST_F(BoundaryAgreementTest, ASaveIsDueAfterItsTimeInHoweverManySegmentsThatIs) {
  BoundaryAgreement boundary(group_.get(), nullptr, absl::Seconds(60), &clock_);
  for (int round = 0; round < 3; ++round) {
    // Each of three epochs is shorter than the time.
    for (int epoch = 0; epoch < 3; ++epoch) {
      boundary.BeginSegment();
      reader_.SetEnd(kUnbounded);
      EXPECT_FALSE(boundary.save_due());
      Steps(boundary, epoch < 2 ? 2 : 1, absl::Seconds(10));
    }
    EXPECT_FALSE(boundary.save_due());
    Steps(boundary, 1, absl::Seconds(10));
    EXPECT_TRUE(boundary.save_due());
    // The segment has ended at the batch that was read last.
    EXPECT_EQ(reader_.end(), reader_.batches());
    EXPECT_FALSE(Step(boundary, absl::Seconds(10)));
    EXPECT_TRUE(boundary.save_due());
    boundary.NoteCheckpoint();
    EXPECT_FALSE(boundary.save_due());
  }
}

TEST_F(BoundaryAgreementTest, ACheckpointForAnotherReasonPostponesTheNextByTime) {
  BoundaryAgreement boundary(group_.get(), nullptr, absl::Seconds(60), &clock_);
  boundary.BeginSegment();
  reader_.SetEnd(kUnbounded);
  Steps(boundary, 5, absl::Seconds(10));
  boundary.NoteCheckpoint();
  Steps(boundary, 5, absl::Seconds(10));
  EXPECT_FALSE(boundary.save_due());
  Steps(boundary, 1, absl::Seconds(10));
  EXPECT_TRUE(boundary.save_due());
}

TEST_F(BoundaryAgreementTest, ARequestToStopEndsTheSegmentAndIsNoSaveByTime) {
  std::atomic<bool> stop{false};
  BoundaryAgreement boundary(group_.get(), &stop, absl::ZeroDuration(), &clock_);
  boundary.BeginSegment();
  reader_.SetEnd(kUnbounded);
  Steps(boundary, 3, absl::Seconds(1));
  EXPECT_FALSE(boundary.MustStop().value());
  stop = true;
  Steps(boundary, 1, absl::Seconds(1));
  EXPECT_FALSE(Step(boundary, absl::Seconds(1)));
  EXPECT_TRUE(boundary.MustStop().value());
  EXPECT_FALSE(boundary.save_due());
}

TEST_F(BoundaryAgreementTest, WorkersCompareNotesAboutFourTimesASecond) {
  std::atomic<bool> stop{false};
  BoundaryAgreement boundary(group_.get(), &stop, absl::ZeroDuration(), &clock_);
  boundary.BeginSegment();
  reader_.SetEnd(kUnbounded);
  Steps(boundary, 100, absl::Milliseconds(10));
  stop = true;
  int more = 0;
  while (Step(boundary, absl::Milliseconds(10))) ++more;
  EXPECT_LE(more, 25);
}

TEST(BoundaryAgreementOfTwoTest, AllWorkersStopAfterTheBatchThatTheFastestHasRead) {
  cluster::MemoryStore store;
  std::atomic<bool> stop{true};
  const std::atomic<bool> none{false};
  uint64_t ends[2] = {};
  std::vector<std::thread> threads;
  for (const int rank : {0, 1}) {
    threads.emplace_back([&, rank] {
      auto group = collectives::InitProcessGroup(
          &store, {.rank = rank, .world_size = 2, .timeout = absl::Seconds(30)});
      TANDEM_ASSERT_OK(group.status());
      EndlessReader endless;
      SegmentReader reader(&endless, 0);
      reader.SetEnd(kUnbounded);
      // Rank 1 was asked to stop; rank 0 has read further ahead.
      BoundaryAgreement boundary(group->get(), rank == 1 ? &stop : &none, absl::ZeroDuration(),
                                 Clock::Real());
      boundary.BeginSegment();
      Batch batch;
      for (int i = 0; i < (rank == 0 ? 5 : 2); ++i) ASSERT_TRUE(reader.Next(&batch).value());
      TANDEM_ASSERT_OK(boundary.AfterStep(&reader));
      ends[rank] = reader.end();
      EXPECT_TRUE(boundary.MustStop().value());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ends[0], 5u);
  EXPECT_EQ(ends[1], 5u);
}

}  // namespace
}  // namespace tandem::worker
