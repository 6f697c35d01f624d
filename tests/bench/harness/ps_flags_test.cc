// SPDX-License-Identifier: Apache-2.0
#include "bench/harness/ps_flags.h"

#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace tandem::bench {
namespace {

TEST(PsFlagsTest, EveryChoiceIsMadeWhereNoneIsNarrowed) {
  const absl::StatusOr<std::vector<PsGroup>> groups = PsGroupsOf({});
  TANDEM_ASSERT_OK(groups);
  size_t in_process = 0, remote = 0;
  for (const PsGroup& group : *groups) {
    for (const PsCase& c : group.cases) {
      EXPECT_EQ(c.dim, group.dim);
      EXPECT_EQ(c.servers, group.servers);
      EXPECT_EQ(c.workers, group.workers);
      ++(c.transport == PsTransport::kInProcess ? in_process : remote);
    }
  }
  EXPECT_EQ(in_process, 3u * 3 * 3 * 2);          // operations, ids, dims, distributions
  EXPECT_EQ(remote, 3u * 3 * 3 * 3 * 2 * 3 * 2);  // transports, ..., processes, in flight, distributions
}

TEST(PsFlagsTest, ServersAndWorkersGoInPairs) {
  const auto processes = [](const char* servers, const char* workers) {
    PsFlags flags{.transports = "tcp", .dims = "8", .servers = servers, .workers = workers};
    std::vector<std::pair<int, int>> pairs;
    const std::vector<PsGroup> groups = PsGroupsOf(flags).value();
    for (const PsGroup& group : groups) pairs.emplace_back(group.servers, group.workers);
    return pairs;
  };
  using Pairs = std::vector<std::pair<int, int>>;
  EXPECT_EQ(processes("", ""), (Pairs{{1, 1}, {2, 2}}));
  EXPECT_EQ(processes("2", ""), (Pairs{{2, 2}}));
  EXPECT_EQ(processes("", "3"), (Pairs{{3, 3}}));
  EXPECT_EQ(processes("1", "1,4"), (Pairs{{1, 1}, {1, 4}}));
  EXPECT_EQ(processes("1,2", "3,4"), (Pairs{{1, 3}, {2, 4}}));
}

}  // namespace
}  // namespace tandem::bench
