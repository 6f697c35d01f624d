// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_COLLECTIVES_CONFORMANCE_SUITE_CONFORMANCE_TESTS_H_
#define TANDEM_TESTS_COLLECTIVES_CONFORMANCE_SUITE_CONFORMANCE_TESTS_H_

// The suite as tests, with ranks as threads. built_in_test.cc instantiates it for the built-in backends;
// other backends do so in a file of their own:
//
//   INSTANTIATE_TEST_SUITE_P(Mine, ConformanceTest, OnWorlds({.backend = "mine", .extra = Mine}), WorldName);

#include <functional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/collectives/conformance/run_ranks.h"
#include "tests/collectives/conformance/suite/suite.h"

namespace tandem::collectives {

struct ConformanceCase {
  std::string backend;
  int world_size = 1;
  std::function<std::string(int rank)> host = nullptr;  // nullptr: all ranks are on one host
  // The address at which a rank listens; nullptr: that of its host. Connections between different addresses
  // are encrypted.
  std::function<std::string(int rank)> address = nullptr;
  std::function<std::vector<BackendFactory>()> extra = nullptr;  // made anew for each group
  SuiteOptions suite = {};
};

inline void PrintTo(const ConformanceCase& c, std::ostream* os) {
  *os << c.backend << " of " << c.world_size;
}

class ConformanceTest : public ::testing::TestWithParam<ConformanceCase> {
 protected:
  void OnAllRanks(const std::function<void(ProcessGroup&)>& body) {
    const ConformanceCase& c = GetParam();
    const std::vector<BackendFactory> extra = c.extra ? c.extra() : std::vector<BackendFactory>();
    RunRanks(
        c.world_size,
        [&](int rank) {
          ProcessGroupOptions options;
          options.backend = c.backend;
          options.extra_backends = extra;
          options.timeout = absl::Seconds(100);
          if (c.host) options.host = c.host(rank);
          if (c.address) options.interface_address = c.address(rank);
          return options;
        },
        body);
  }
};

TEST_P(ConformanceTest, ReductionsAreTheModel) {
  OnAllRanks([this](ProcessGroup& group) { CheckReductions(group, GetParam().suite); });
}
TEST_P(ConformanceTest, MovementsAreTheModel) {
  OnAllRanks([this](ProcessGroup& group) { CheckMovements(group, GetParam().suite); });
}
TEST_P(ConformanceTest, UnevenPartsAreTheModel) {
  OnAllRanks([this](ProcessGroup& group) { CheckUnevenParts(group, GetParam().suite); });
}
TEST_P(ConformanceTest, MessagesFindTheirReceivers) {
  OnAllRanks([this](ProcessGroup& group) { CheckPointToPoint(group, GetParam().suite); });
}
TEST_P(ConformanceTest, CoalescedCallsAreTheSingleOnes) {
  OnAllRanks([this](ProcessGroup& group) { CheckCoalesced(group, GetParam().suite); });
}
TEST_P(ConformanceTest, ByteStringsArrive) {
  OnAllRanks([](ProcessGroup& group) { CheckByteStrings(group); });
}
TEST_P(ConformanceTest, SubgroupsHaveTheRightRanksAndWork) {
  OnAllRanks([](ProcessGroup& group) { CheckSubgroups(group); });
}
TEST_P(ConformanceTest, GroupsInFlightDoNotWaitForEachOther) {
  OnAllRanks([](ProcessGroup& group) { CheckGroupsInFlight(group); });
}
TEST_P(ConformanceTest, ALongMixtureStaysInStep) {
  OnAllRanks([this](ProcessGroup& group) {
    CheckMixture(group, GetParam().suite);
    TANDEM_EXPECT_OK(group.MonitoredBarrier(absl::Seconds(60)));
  });
}

inline auto OnWorlds(ConformanceCase c, const std::vector<int>& world_sizes = {1, 2, 3, 4, 7}) {
  std::vector<ConformanceCase> cases;
  for (const int world_size : world_sizes) {
    c.world_size = world_size;
    cases.push_back(c);
  }
  return ::testing::ValuesIn(cases);
}

inline std::string WorldName(const ::testing::TestParamInfo<ConformanceCase>& info) {
  return absl::StrCat("Of", info.param.world_size);
}

}  // namespace tandem::collectives

#endif  // TANDEM_TESTS_COLLECTIVES_CONFORMANCE_SUITE_CONFORMANCE_TESTS_H_
