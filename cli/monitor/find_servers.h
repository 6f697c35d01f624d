#ifndef TANDEM_CLI_MONITOR_FIND_SERVERS_H_
#define TANDEM_CLI_MONITOR_FIND_SERVERS_H_

// Where the parameter servers of a running job are, for commands that look at it from outside.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "launcher/job_file.h"

namespace tandem::cli {

// Ways to name a job. With none of them: TANDEM_STORE, else MASTER_ADDR and MASTER_PORT, else the newest
// runs/*/logs/job.json.
struct ServersFlags {
  std::string servers;  // host:port,host:port,... in the order of their indexes
  std::string store;   // host:port of the job's store, or etcd://host:port/prefix/id where its launchers meet
  std::string run_id;  // of the launchers' job there; "": the only one
  std::string job;     // a log directory of `tandem run`, or its parent
  double timeout_seconds = 5;
};

// What the flags, the environment or a job file say, without asking anybody. Errors as FindServers'.
absl::StatusOr<launcher::JobAddress> FindJob(const ServersFlags& flags);

// The servers' addresses by index; "" where one has not said its own. Blocks at most the time-out for the
// store. Errors: InvalidArgument (a malformed flag), NotFound (no way to a job: says what to give; or the job
// has no servers), Unavailable (nobody serves the store: the job may have ended).
absl::StatusOr<std::vector<std::string>> FindServers(const ServersFlags& flags);

// "host:port" of the job's store, without asking it; where only the launchers' rendezvous is known, that is
// asked, and Unavailable says that no round is running. Errors as FindServers'.
absl::StatusOr<std::string> FindStore(const ServersFlags& flags);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_MONITOR_FIND_SERVERS_H_
