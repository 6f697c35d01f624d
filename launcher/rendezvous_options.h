// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_LAUNCHER_RENDEZVOUS_OPTIONS_H_
#define TANDEM_LAUNCHER_RENDEZVOUS_OPTIONS_H_

// The options of the rendezvous at which the launchers of a job meet, from --nnodes, --rdzv-backend and the
// related flags.

#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cluster/rendezvous/rendezvous.h"
#include "launcher/plan/flags.h"

namespace tandem::launcher {

// A plain value.
struct RendezvousHandlerOptions {
  // One of:
  //
  // - "": a single launcher, whose rendezvous is in its own memory.
  // - "static": a store that node 0 serves at `endpoint`.
  // - "c10d": a store that the first launcher able to bind `endpoint` serves.
  // - "etcd": etcd at `endpoint`.
  std::string backend;
  std::string endpoint;    // "host:port"
  std::string local_addr;  // this node's address for the other nodes; "": the one that routes to `endpoint`
  std::string
      route_addr;  // the address that routes to `endpoint`, if it is known already (endpoint_lookup.h)
  std::string master_addr;                  // MASTER_ADDR of a single launcher; "": 127.0.0.1
  bool job_store_in_etcd = false;           // --job-store etcd
  int node_rank = -1;                       // this node's place in the round; -1: any
  std::map<std::string, std::string> conf;  // keys of --rdzv-conf that have no field in `rendezvous`
  cluster::RendezvousOptions rendezvous;
  // How long a store that takes no change, because its disk is full, is tried again.
  absl::Duration full_timeout = absl::Seconds(30);
};

// Parses the value of --rdzv-conf, such as "lease=2,rank=1", into `options`. Returns InvalidArgument for an
// unknown key or a malformed value, which it names; `options` may then be partly changed.
absl::Status ReadRendezvousConf(absl::string_view text, RendezvousHandlerOptions* options);

// Parses the value of --nnodes: "4" means 4 to 4 nodes, "2:8" means 2 to 8. Returns InvalidArgument, which
// quotes the text, unless 1 <= min <= max <= 4096.
absl::Status ParseNodes(absl::string_view text, int* min_nodes, int* max_nodes);

// Returns the options that the flags mean. `max_restarts` is that of the launch plan. The run id is not
// filled in. Returns InvalidArgument, which names the flag, for flags that are malformed, missing or
// contradict each other.
absl::StatusOr<RendezvousHandlerOptions> MakeRendezvousOptions(const RunFlags& flags, int max_restarts);

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_RENDEZVOUS_OPTIONS_H_
