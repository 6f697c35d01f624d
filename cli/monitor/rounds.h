// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLI_MONITOR_ROUNDS_H_
#define TANDEM_CLI_MONITOR_ROUNDS_H_

// Reads the state of a job's rendezvous from outside the job: its rounds and the nodes that take part in
// them.

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cluster/rendezvous/state.h"

namespace tandem::cli {

// A plain value.
struct JobRounds {
  std::string where;  // the rendezvous: "etcd://host:port/prefix", or "host:port"
  std::string run_id;
  cluster::RendezvousState state;

  // Returns "host:port" of the running round's store; "" between rounds and after the last one.
  std::string store() const;
};

// Returns whether `store` is the address of a rendezvous ("etcd://..." or "etcds://...") and not of a round's
// store.
bool IsRendezvous(const std::string& store);

// Reads the state of the run `run_id` from the rendezvous at `where`, which is "host:port" or
// "etcd://host:port[,...]/prefix[?...]". With `run_id` "" it reads the only run there. Changes nothing there.
// Each call blocks for at most `timeout`. Returns:
//
// - NotFound if no launcher has joined such a run.
// - InvalidArgument if there are several runs, which it names, or if the address is malformed.
// - Unavailable if the rendezvous does not respond.
absl::StatusOr<JobRounds> AskRounds(const std::string& where, const std::string& run_id,
                                    absl::Duration timeout);

// Returns lines of text: the job, then each node.
std::string RoundsToText(const JobRounds& job);
// Returns one JSON object. docs/profiling.md describes the fields.
std::string RoundsToJson(const JobRounds& job);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_MONITOR_ROUNDS_H_
