// SPDX-License-Identifier: Apache-2.0
#include "collectives/backends/shm/shared_failure_state.h"

#include "collectives/backends/shm/segment.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace tandem::collectives::shm {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

TEST(SharedFailureStateTest, TheFirstFailureReachesAllRanksAndStays) {
  TANDEM_ASSERT_OK_AND_ASSIGN(auto segment, Segment::Create(3));
  SharedFailureState zero(segment, 0), one(segment, 1), two(segment, 2);
  TANDEM_EXPECT_OK(zero.status());
  const absl::Status first = absl::UnavailableError("rank 2 died");
  EXPECT_EQ(one.Report(first), first);
  EXPECT_EQ(zero.Report(absl::InternalError("later")), first);
  zero.Abort(absl::AbortedError("later still"));
  EXPECT_EQ(zero.status(), first);
  EXPECT_EQ(two.status(), first);
}

TEST(SharedFailureStateTest, ADamagedRecordIsStillAFailure) {
  TANDEM_ASSERT_OK_AND_ASSIGN(auto segment, Segment::Create(2));
  SharedFailureState zero(segment, 0), one(segment, 1);
  (void)one.Report(absl::UnavailableError("x"));
  segment->header().failure.length = 0xffffffff;
  segment->header().failure.code = -5;
  EXPECT_THAT(zero.status(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("the group has failed")));
}

TEST(SharedFailureStateTest, ARecordOfADeadWriterBlocksNoRank) {
  TANDEM_ASSERT_OK_AND_ASSIGN(auto segment, Segment::Create(2));
  SharedFailureState zero(segment, 0), one(segment, 1);
  segment->header().failure.state = 1;  // as if being written
  EXPECT_EQ(zero.Report(absl::UnavailableError("rank 1 died")), absl::UnavailableError("rank 1 died"));
  EXPECT_THAT(one.status(), StatusIs(absl::StatusCode::kUnavailable));
}

}  // namespace
}  // namespace tandem::collectives::shm
