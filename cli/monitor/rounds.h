#ifndef TANDEM_CLI_MONITOR_ROUNDS_H_
#define TANDEM_CLI_MONITOR_ROUNDS_H_

// What the launchers of a job have agreed on, as seen from outside: which nodes take part in which round.

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/rendezvous/state.h"

namespace tandem::cli {

// A plain value.
struct JobRounds {
  std::string where;  // the rendezvous: "etcd://host:port/prefix", or "host:port"
  std::string run_id;
  collectives::RendezvousState state;

  // "host:port" of the running round's store; "" between rounds and after the last.
  std::string store() const;
};

// Whether `store` names a place where launchers meet, rather than a round's own store: "etcd://..." or
// "etcds://...".
bool IsRendezvous(const std::string& store);

// Asks the rendezvous at `where` ("etcd://host:port[,...]/prefix[?...]" or "host:port") for the run `run_id`;
// "": the only one there. Leaves nothing behind. Blocks at most `timeout`. NotFound: no launcher has joined
// such a run; InvalidArgument: there are several (names them), or a malformed address; Unavailable.
absl::StatusOr<JobRounds> AskRounds(const std::string& where, const std::string& run_id,
                                    absl::Duration timeout);

// A few lines: the job, then each node.
std::string RoundsToText(const JobRounds& job);
// One object. docs/profiling.md describes the fields.
std::string RoundsToJson(const JobRounds& job);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_MONITOR_ROUNDS_H_
