// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_BACKENDS_HIERARCHICAL_TOPOLOGY_H_
#define TANDEM_COLLECTIVES_BACKENDS_HIERARCHICAL_TOPOLOGY_H_

// The assignment of ranks to hosts. Plain values.

#include <vector>

#include "absl/types/span.h"
#include "collectives/backend.h"

namespace tandem::collectives::hierarchical {

struct HostTopology {
  // The ranks of each host, ascending; hosts in the order of their first ranks.
  std::vector<std::vector<int>> hosts;
  std::vector<int> host_of;   // by rank
  std::vector<int> local_of;  // by rank: its index in its host

  explicit HostTopology(absl::Span<const RankEndpoint> peers);
  int leader(int host) const { return hosts[host][0]; }
  std::vector<int> leaders() const;
};

// The layout of the ranks' parts in one array: host after host, and within each host rank after rank.
struct Layout {
  std::vector<size_t> offset;       // by rank, in elements
  std::vector<size_t> host_offset;  // by host
  std::vector<size_t> host_count;
  size_t total = 0;

  Layout(const HostTopology& topology, absl::Span<const size_t> counts);
};

}  // namespace tandem::collectives::hierarchical

#endif  // TANDEM_COLLECTIVES_BACKENDS_HIERARCHICAL_TOPOLOGY_H_
