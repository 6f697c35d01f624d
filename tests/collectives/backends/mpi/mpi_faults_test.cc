// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "tests/collectives/backends/mpi/mpi_ranks.h"
#include "tests/testing/status_matchers.h"

namespace tandem::collectives {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

class MpiFaultsTest : public MpiRanks {
 protected:
  void SetUp() override {
    if (world_size() < 2) GTEST_SKIP() << "needs two ranks";
  }
  Operation Sum(std::vector<float>* values, absl::Duration timeout = kTimeout) {
    Operation o;
    o.kind = OpKind::kAllReduce;
    o.dtype = DType::kF32;
    o.timeout = timeout;
    o.in = {values->data(), values->size()};
    o.out = {values->data(), values->size()};
    return o;
  }
};

TEST_F(MpiFaultsTest, RanksThatCallDifferentThingsAreAllTold) {
  TANDEM_ASSERT_OK_AND_ASSIGN(auto backend, Make("g"));
  std::vector<float> values(rank() == 0 ? 1000000 : 10, 1.0f);
  const auto told = StatusIs(absl::StatusCode::kInvalidArgument,
                             AllOf(HasSubstr("rank 0 calls all_reduce #0 (sum of f32 x 1000000)"),
                                   HasSubstr("rank 1 calls all_reduce #0 (sum of f32 x 10)")));
  EXPECT_THAT(backend->Run(Sum(&values)), told);
  EXPECT_EQ(values.back(), 1.0f);
  EXPECT_THAT(backend->Run(Sum(&values)), told);  // it stays broken
}

TEST_F(MpiFaultsTest, PairsThatDisagreeAreNamedOnAllRanks) {
  TANDEM_ASSERT_OK_AND_ASSIGN(auto backend, Make("g"));
  std::vector<int32_t> buffer(2 * world_size() + 2);
  std::vector<ConstPart> ins;
  std::vector<Part> outs;
  for (int r = 0; r < world_size(); ++r) {
    ins.push_back({&buffer[2 * r], size_t(rank() == 1 && r == 0 ? 2 : 1)});
    outs.push_back({&buffer[2 * r], 1});
  }
  Operation o;
  o.kind = OpKind::kAllToAll;
  o.dtype = DType::kI32;
  o.even = false;
  o.timeout = kTimeout;
  o.ins = ins;
  o.outs = outs;
  EXPECT_THAT(backend->Run(o), StatusIs(absl::StatusCode::kInvalidArgument,
                                        HasSubstr("rank 1 sends 2 elements to rank 0, which expects 1")));
}

TEST_F(MpiFaultsTest, ARankThatDoesNotComeIsNamed) {
  TANDEM_ASSERT_OK_AND_ASSIGN(auto backend, Make("g"));
  const int late = world_size() - 1;
  std::vector<float> values(100, 1.0f);
  if (rank() != late) {
    const absl::Time begin = absl::Now();
    EXPECT_THAT(backend->Run(Sum(&values, absl::Seconds(3))),
                StatusIs(absl::StatusCode::kDeadlineExceeded,
                         AllOf(HasSubstr("all_reduce #0"), HasSubstr(absl::StrCat("rank ", late)))));
    EXPECT_LT(absl::Now() - begin, absl::Seconds(40));
  }
  AwaitAllRanks("timed out");
  if (rank() == late) {
    // The others report the failure long before this rank's own time-out.
    EXPECT_THAT(backend->Run(Sum(&values)),
                StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("gave up")));
  }
  EXPECT_EQ(values, std::vector<float>(100, 1.0f));
  EXPECT_FALSE(backend->Run(Sum(&values)).ok());
}

TEST_F(MpiFaultsTest, AnAbortFromAnotherThreadEndsTheOperationEverywhere) {
  TANDEM_ASSERT_OK_AND_ASSIGN(auto backend, Make("g"));
  std::vector<float> values(3000000, 1.0f);
  if (rank() == 0) {
    // This rank never joins, so the others wait.
    std::thread([&] { backend->Abort(absl::AbortedError("enough")); }).join();
    EXPECT_THAT(backend->Run(Sum(&values)), StatusIs(absl::StatusCode::kAborted, HasSubstr("enough")));
    backend->Abort(absl::AbortedError("again"));
  } else {
    EXPECT_THAT(backend->Run(Sum(&values)),
                StatusIs(absl::StatusCode::kAborted, AllOf(HasSubstr("rank 0"), HasSubstr("enough"))));
  }
  AwaitAllRanks("end");
}

TEST_F(MpiFaultsTest, AnAbortEndsAWaitInThisProcess) {
  TANDEM_ASSERT_OK_AND_ASSIGN(auto backend, Make("g"));
  std::vector<float> values(10, 1.0f);
  if (rank() == 0) {
    absl::Notification running;
    std::thread aborter([&] {
      running.WaitForNotification();
      backend->Abort(absl::AbortedError("enough"));
    });
    running.Notify();
    EXPECT_THAT(backend->Run(Sum(&values)), StatusIs(absl::StatusCode::kAborted, HasSubstr("enough")));
    aborter.join();
  }
  AwaitAllRanks("end");
}

TEST_F(MpiFaultsTest, ARankThatHasLeftIsNamed) {
  TANDEM_ASSERT_OK_AND_ASSIGN(auto backend, Make("g"));
  std::vector<float> values(10, 1.0f);
  if (rank() == 1) {
    backend.reset();
  } else {
    EXPECT_THAT(backend->Run(Sum(&values)),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank 1 has left the group")));
  }
  AwaitAllRanks("end");
}

TEST_F(MpiFaultsTest, MinimaWithNaNsAreTheSameBitsOnAllRanks) {
  TANDEM_ASSERT_OK_AND_ASSIGN(auto backend, Make("g"));
  std::vector<float> values = {rank() == 1 ? NAN : float(rank()), rank() == 0 ? 0.0f : -0.0f};
  Operation o = Sum(&values);
  o.reduce = ReduceOp::kMin;
  TANDEM_ASSERT_OK(backend->Run(o));
  std::vector<char> all(world_size() * 8);
  std::vector<Part> outs;
  for (int r = 0; r < world_size(); ++r) outs.push_back({&all[8 * r], 8});
  Operation gather;
  gather.kind = OpKind::kAllGather;
  gather.timeout = kTimeout;
  gather.sequence = 1;
  gather.in = {values.data(), 8};
  gather.outs = outs;
  TANDEM_ASSERT_OK(backend->Run(gather));
  for (int r = 1; r < world_size(); ++r) EXPECT_EQ(std::memcmp(&all[0], &all[8 * r], 8), 0) << r;
}

}  // namespace
}  // namespace tandem::collectives
