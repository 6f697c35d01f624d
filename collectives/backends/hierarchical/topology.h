#ifndef TANDEM_COLLECTIVES_BACKENDS_HIERARCHICAL_TOPOLOGY_H_
#define TANDEM_COLLECTIVES_BACKENDS_HIERARCHICAL_TOPOLOGY_H_

// Which rank is on which host. Plain values.

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "collectives/backend.h"

namespace tandem::collectives::hierarchical {

struct HostTopology {
  std::vector<std::vector<int>>
      hosts;                  // the ranks of each, ascending; hosts in the order of their first ranks
  std::vector<int> host_of;   // by rank
  std::vector<int> local_of;  // by rank: its place in its host

  explicit HostTopology(absl::Span<const Peer> peers);
  int leader(int host) const { return hosts[host][0]; }
  std::vector<int> leaders() const;
};

// The ranks' parts of one array, host after host, and in each host rank after rank.
struct Layout {
  std::vector<size_t> offset;       // by rank, in elements
  std::vector<size_t> host_offset;  // by host
  std::vector<size_t> host_count;
  size_t total = 0;

  Layout(const HostTopology& topology, absl::Span<const size_t> counts);
};

// `text`, in which a group's ranks have the numbers 0, 1, ..., with `names` for them: "rank 1" becomes
// "rank 5", "ranks 0 and 1" "ranks 2 and 5". Numbers that are nobody's stay.
std::string RenameRanks(absl::string_view text, absl::Span<const int> names);

}  // namespace tandem::collectives::hierarchical

#endif  // TANDEM_COLLECTIVES_BACKENDS_HIERARCHICAL_TOPOLOGY_H_
