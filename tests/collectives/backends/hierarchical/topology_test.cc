// SPDX-License-Identifier: Apache-2.0
// The assignment of ranks to hosts.

#include "collectives/backends/hierarchical/topology.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::collectives::hierarchical {
namespace {

using ::testing::ElementsAre;

std::vector<RankEndpoint> On(std::initializer_list<const char*> hosts) {
  std::vector<RankEndpoint> peers;
  for (const char* host : hosts) peers.push_back({host, "", 0});
  return peers;
}

TEST(TopologyTest, HostsComeInTheOrderOfTheirFirstRanks) {
  const HostTopology topology(On({"z", "a", "z", "m", "a"}));
  EXPECT_THAT(topology.hosts, ElementsAre(ElementsAre(0, 2), ElementsAre(1, 4), ElementsAre(3)));
  EXPECT_THAT(topology.host_of, ElementsAre(0, 1, 0, 2, 1));
  EXPECT_THAT(topology.local_of, ElementsAre(0, 0, 1, 0, 1));
  EXPECT_THAT(topology.leaders(), ElementsAre(0, 1, 3));
}

TEST(TopologyTest, PartsLieHostByHost) {
  const HostTopology topology(On({"a", "b", "a"}));
  const Layout layout(topology, {5, 7, 2});
  EXPECT_THAT(layout.offset, ElementsAre(0, 7, 5));
  EXPECT_THAT(layout.host_offset, ElementsAre(0, 7));
  EXPECT_THAT(layout.host_count, ElementsAre(7, 7));
  EXPECT_EQ(layout.total, 14);
}

}  // namespace
}  // namespace tandem::collectives::hierarchical
