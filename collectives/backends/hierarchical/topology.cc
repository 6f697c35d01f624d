// SPDX-License-Identifier: Apache-2.0
#include "collectives/backends/hierarchical/topology.h"

#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

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

std::string RenameRanks(absl::string_view text, absl::Span<const int> names) {
  std::string result;
  size_t at = 0;
  // Appends the number at `at` under its new name; returns false if there is no number.
  auto number = [&]() {
    size_t end = at;
    while (end < text.size() && absl::ascii_isdigit(text[end])) ++end;
    int value = 0;
    if (end == at || !absl::SimpleAtoi(text.substr(at, end - at), &value)) return false;
    const bool known = value < static_cast<int>(names.size());
    absl::StrAppend(&result, known ? names[value] : value);
    at = end;
    return true;
  };
  auto skip = [&](absl::string_view word) {
    if (!absl::StartsWith(text.substr(at), word)) return false;
    absl::StrAppend(&result, word);
    at += word.size();
    return true;
  };
  while (at < text.size()) {
    const bool word_begins = at == 0 || !absl::ascii_isalnum(text[at - 1]);
    if (word_begins && skip("rank ")) {
      number();
    } else if (word_begins && skip("ranks ")) {
      while (number() && (skip(", ") || skip(" and "))) {
      }
    } else {
      result += text[at++];
    }
  }
  return result;
}

}  // namespace tandem::collectives::hierarchical
