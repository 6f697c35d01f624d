// SPDX-License-Identifier: Apache-2.0
#include "collectives/backends/shm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace tandem::collectives::shm {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

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

}  // namespace
}  // namespace tandem::collectives::shm
