// SPDX-License-Identifier: Apache-2.0
#include "collectives/backends/hierarchical/topology.h"

#include <map>
#include <string>

namespace tandem::collectives::hierarchical {

HostTopology::HostTopology(absl::Span<const RankEndpoint> peers) {
  std::map<std::string, int> known;
  for (size_t rank = 0; rank < peers.size(); ++rank) {
    const int host = known.emplace(peers[rank].host, static_cast<int>(hosts.size())).first->second;
    if (host == static_cast<int>(hosts.size())) hosts.emplace_back();
    host_of.push_back(host);
    local_of.push_back(static_cast<int>(hosts[host].size()));
    hosts[host].push_back(static_cast<int>(rank));
  }
}

std::vector<int> HostTopology::leaders() const {
  std::vector<int> all;
  for (const std::vector<int>& host : hosts) all.push_back(host[0]);
  return all;
}

Layout::Layout(const HostTopology& topology, absl::Span<const size_t> counts) : offset(counts.size()) {
  for (const std::vector<int>& host : topology.hosts) {
    host_offset.push_back(total);
    for (int rank : host) {
      offset[rank] = total;
      total += counts[rank];
    }
    host_count.push_back(total - host_offset.back());
  }
}

}  // namespace tandem::collectives::hierarchical
