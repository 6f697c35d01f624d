// SPDX-License-Identifier: Apache-2.0
// The conformance suite on ranks that mpirun has started.

#include "absl/strings/str_cat.h"
#include "collectives/process_group.h"
#include "tests/collectives/backends/mpi/mpi_ranks.h"
#include "tests/collectives/conformance/suite/suite.h"
#include "tests/testing/status_matchers.h"

namespace tandem::collectives {
namespace {

class MpiConformanceTest : public MpiRanks {
 protected:
  void SetUp() override {
    ProcessGroupOptions options;
    options.backend = "mpi";
    options.name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    options.rank = rank();
    options.world_size = world_size();
    options.timeout = kTimeout;
    TANDEM_ASSERT_OK_AND_ASSIGN(group_, InitProcessGroup(store(), options));
    if (world_size() > 1) {
      ASSERT_EQ(group_->backend(), "mpi");
    }
  }
  std::unique_ptr<ProcessGroup> group_;
};

TEST_F(MpiConformanceTest, ReductionsAreTheModel) { CheckReductions(*group_); }
TEST_F(MpiConformanceTest, MovementsAreTheModel) { CheckMovements(*group_); }
TEST_F(MpiConformanceTest, UnevenPartsAreTheModel) { CheckUnevenParts(*group_); }
TEST_F(MpiConformanceTest, MessagesFindTheirReceivers) { CheckPointToPoint(*group_); }
TEST_F(MpiConformanceTest, CoalescedCallsAreTheSingleOnes) { CheckCoalesced(*group_); }
TEST_F(MpiConformanceTest, ByteStringsArrive) { CheckByteStrings(*group_); }
TEST_F(MpiConformanceTest, SubgroupsHaveTheRightRanksAndWork) { CheckSubgroups(*group_); }
TEST_F(MpiConformanceTest, GroupsInFlightDoNotWaitForEachOther) { CheckGroupsInFlight(*group_); }
TEST_F(MpiConformanceTest, ALongMixtureStaysInStep) { CheckMixture(*group_); }

}  // namespace
}  // namespace tandem::collectives
