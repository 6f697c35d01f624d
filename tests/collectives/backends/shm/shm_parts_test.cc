// The parts of which the backend is made.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "collectives/backends/shm/copy.h"
#include "collectives/backends/shm/failure_board.h"
#include "collectives/backends/shm/segment.h"
#include "collectives/backends/shm/wait.h"
#include "tests/testing/status_matchers.h"

namespace tandem::collectives::shm {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

constexpr auto kStays = [] { return false; };

TEST(WaitTest, ASleeperIsWokenByTheWriter) {
  const Patience impatient(0, 0, 0);
  std::atomic<uint32_t> failure{0};
  std::atomic<uint64_t> word{0};
  Bell bell;
  for (uint64_t i = 1; i <= 200; ++i) {
    std::thread writer([&] { Publish(word, i, bell, /*fenced=*/true); });
    Waiter waiter(impatient, failure, absl::Seconds(60));
    EXPECT_EQ(waiter.Await(
                  bell, [&] { return word.load(std::memory_order_acquire) == i; }, kStays),
              Outcome::kReady);
    writer.join();
  }
  EXPECT_EQ(bell.sleepers.load(), 0u);
}

TEST(WaitTest, EndsAreToldApartAndWhatIsThereCounts) {
  for (const Patience& patience : {Patience(10, 0, 0), Patience(0, 3, 2)}) {
    std::atomic<uint32_t> failure{0};
    Bell bell;
    const auto never = [] { return false; };
    const auto always = [] { return true; };
    EXPECT_EQ(Waiter(patience, failure, absl::Milliseconds(5)).Await(bell, never, kStays),
              Outcome::kTimedOut);
    EXPECT_EQ(Waiter(patience, failure, absl::InfiniteDuration()).Await(bell, never, always), Outcome::kLeft);
    failure = 1;
    EXPECT_EQ(Waiter(patience, failure, absl::Seconds(60)).Await(bell, never, kStays), Outcome::kFailed);
    EXPECT_EQ(Waiter(patience, failure, absl::ZeroDuration()).Await(bell, always, always), Outcome::kReady);
  }
}

TEST(WaitTest, RanksThatShareProcessorsDoNotSpin) {
  const auto looks = [](const Patience& p) { return p.spins + p.yields * p.spins_between; };
  EXPECT_GT(looks(PatienceFor(2, 2)), 50 * looks(PatienceFor(4, 2)));
  EXPECT_GT(PatienceFor(4, 2).yields, 0);
  EXPECT_GE(UsableProcessors(), 1);
}

TEST(SegmentTest, GeometryKeepsPiecesApartForEveryWorldSize) {
  for (int world = 1; world <= kMaxRanks; ++world) {
    const Geometry g(world);
    EXPECT_GE(g.areas_offset, sizeof(GroupHeader));
    EXPECT_GE(g.controls_offset, g.areas_offset + world * sizeof(RankArea));
    EXPECT_GE(g.rings_offset, g.controls_offset + world * world * sizeof(RingControl));
    EXPECT_GE(g.stages_offset, g.rings_offset + world * world * g.ring_bytes);
    EXPECT_EQ(g.total_bytes, g.stages_offset + world * g.stage_bytes);
    EXPECT_EQ(g.block_bytes % (kLine * world), 0u);
    EXPECT_LE(g.block_bytes, g.stage_bytes / kStageParts);
    EXPECT_EQ(g.ring_bytes & (g.ring_bytes - 1), 0u);
    EXPECT_LE(g.total_bytes, size_t{160} << 20);
  }
}

TEST(SegmentTest, ASecondMappingSharesTheMemoryAndKeepsNoDescriptor) {
  TANDEM_ASSERT_OK_AND_ASSIGN(auto first, Segment::Create(2));
  const int passed = fcntl(first->descriptor(), F_DUPFD_CLOEXEC, 0);
  TANDEM_ASSERT_OK_AND_ASSIGN(auto second, Segment::Map(ipc::Descriptor(passed), 2));
  EXPECT_EQ(fcntl(passed, F_GETFD), -1);
  first->area(1).progress = 7;
  EXPECT_EQ(second->area(1).progress.load(), 7u);
}

TEST(SegmentTest, MemoryThatCouldShrinkOrHasAnotherSizeIsRefused) {
  const int unsealed = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(ftruncate(unsealed, Geometry(2).total_bytes), 0);
  EXPECT_THAT(Segment::Map(ipc::Descriptor(unsealed), 2).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("not sealed")));
  EXPECT_EQ(fcntl(unsealed, F_GETFD), -1);
  TANDEM_ASSERT_OK_AND_ASSIGN(auto two, Segment::Create(2));
  EXPECT_THAT(Segment::Map(ipc::Descriptor(fcntl(two->descriptor(), F_DUPFD_CLOEXEC, 0)), 4).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST(SegmentTest, ThreadsOfOneProcessFindTheMappingByItsKeyWhileItLives) {
  TANDEM_ASSERT_OK_AND_ASSIGN(auto segment, Segment::Create(2));
  const std::string key = OfferToThisProcess(segment);
  EXPECT_EQ(FindInThisProcess(key), segment);
  EXPECT_EQ(FindInThisProcess("another"), nullptr);
  segment.reset();
  EXPECT_EQ(FindInThisProcess(key), nullptr);
}

TEST(FailureBoardTest, TheFirstFailureIsEverybodysAndStays) {
  TANDEM_ASSERT_OK_AND_ASSIGN(auto segment, Segment::Create(3));
  FailureBoard zero(segment, 0), one(segment, 1), two(segment, 2);
  TANDEM_EXPECT_OK(zero.status());
  const absl::Status first = absl::UnavailableError("rank 2 died");
  EXPECT_EQ(one.Report(first), first);
  EXPECT_EQ(zero.Report(absl::InternalError("later")), first);
  zero.Abort(absl::AbortedError("later still"));
  EXPECT_EQ(zero.status(), first);
  EXPECT_EQ(two.status(), first);
}

TEST(FailureBoardTest, ADamagedRecordIsStillAFailure) {
  TANDEM_ASSERT_OK_AND_ASSIGN(auto segment, Segment::Create(2));
  FailureBoard zero(segment, 0), one(segment, 1);
  (void)one.Report(absl::UnavailableError("x"));
  segment->header().failure.length = 0xffffffff;
  segment->header().failure.code = -5;
  EXPECT_THAT(zero.status(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("the group has failed")));
}

TEST(FailureBoardTest, ARecordWhoseWriterDiedHoldsNobodyUp) {
  TANDEM_ASSERT_OK_AND_ASSIGN(auto segment, Segment::Create(2));
  FailureBoard zero(segment, 0), one(segment, 1);
  segment->header().failure.state = 1;  // as if being written
  EXPECT_EQ(zero.Report(absl::UnavailableError("rank 1 died")), absl::UnavailableError("rank 1 died"));
  EXPECT_THAT(one.status(), StatusIs(absl::StatusCode::kUnavailable));
}

TEST(CopyTest, StreamedBytesArriveAtEveryAlignmentAndLength) {
  std::vector<char> from(5000), to(5200);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<char>(i * 31 + 1);
  for (const size_t length : {0, 1, 63, 255, 256, 257, 320, 1000, 4096, 4999}) {
    for (const size_t offset : {0, 1, 16, 63}) {
      std::fill(to.begin(), to.end(), 0);
      Copy(to.data() + offset, from.data() + offset % 2, length, StoreHint::kStream);
      StreamFence();
      ASSERT_EQ(std::memcmp(to.data() + offset, from.data() + offset % 2, length), 0) << length;
      ASSERT_EQ(to[offset + length], 0);
    }
  }
}

}  // namespace
}  // namespace tandem::collectives::shm
