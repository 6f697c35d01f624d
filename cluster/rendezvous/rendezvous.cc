// SPDX-License-Identifier: Apache-2.0
#include "cluster/rendezvous/rendezvous.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "cluster/rendezvous/state.h"
#include "cluster/rendezvous/store_rendezvous.h"
#include "cluster/store/etcd/etcd_client.h"

namespace tandem::cluster {
namespace {

int Processes(const Node& node, absl::string_view role) {
  const auto found = node.processes.find(std::string(role));
  return found == node.processes.end() ? 0 : found->second;
}

}  // namespace

int Round::FirstRank(absl::string_view role) const {
  int first = 0;
  for (int i = 0; i < group_rank; ++i) first += Processes(nodes[i], role);
  return first;
}

int Round::WorldSize(absl::string_view role) const {
  int size = 0;
  for (const Node& node : nodes) size += Processes(node, role);
  return size;
}

int Round::Leader() const {
  int leader = 0;
  for (const int index : absent) {  // ascending
    if (index == leader) ++leader;
  }
  return leader;
}

std::string RoundStore(const std::string& store, const std::string& rendezvous, uint64_t job, int64_t epoch) {
  if (store != kStoreInEtcd) return store;
  // The job's number keeps the rounds of an earlier job of the same name apart.
  const size_t mark = std::min(rendezvous.find('?'), rendezvous.size());
  std::string query = rendezvous.substr(mark);
  // Like the rendezvous, a round that is over leaves nothing behind.
  if (!absl::StrContains(query, "lease=")) {
    absl::StrAppend(&query, query.empty() ? "?" : "&", "lease=", absl::ToInt64Seconds(EtcdOptions().lease));
  }
  return absl::StrCat(rendezvous.substr(0, mark), "-", absl::Hex(job, absl::kZeroPad16), "-", epoch, query);
}

absl::StatusOr<std::unique_ptr<Rendezvous>> MakeRendezvous(Store* store, const RendezvousOptions& options,
                                                           Clock* clock) {
  TANDEM_RETURN_IF_ERROR(CheckOptions(options));
  return std::make_unique<StoreRendezvous>(store, options, clock);
}

}  // namespace tandem::cluster
