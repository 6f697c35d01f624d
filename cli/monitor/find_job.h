// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLI_MONITOR_FIND_JOB_H_
#define TANDEM_CLI_MONITOR_FIND_JOB_H_

// Finds a running job, its store and its parameter servers, for commands that look at the job from outside.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "launcher/job_file.h"

namespace tandem::cli {

// The flags that name a job. If none is given, the job is that of TANDEM_STORE, else of MASTER_ADDR and
// MASTER_PORT, else of the newest runs/*/logs/job.json.
struct JobFlags {
  std::string servers;  // host:port,host:port,... in the order of their indexes
  std::string store;    // host:port of the job's store, or etcd://host:port/prefix/id of its rendezvous
  std::string run_id;   // the job's name at the rendezvous; "": the only job there
  std::string job;      // a log directory of `tandem run`, or its parent
  double timeout_seconds = 5;  // of one call to the store or to the servers
};

// Returns the job's address as the flags, the environment or a job file give it, and makes the job's key that
// of this process (rpc::SetProcessCredential) unless the process has a grant: channels that are made later
// reach the job's store and servers. Sends no request. Errors are those of FindServers and
// rpc::JobKey::FromFile.
absl::StatusOr<launcher::JobAddress> FindJob(const JobFlags& flags);

// Returns the servers' addresses by index; "" for a server that has not registered. Blocks for at most the
// timeout in each call to the store. Returns:
//
// - InvalidArgument for a malformed flag.
// - NotFound if no job is found (the message says what to give), or if the job has no servers.
// - Unavailable if the store does not respond: the job may have ended.
absl::StatusOr<std::vector<std::string>> FindServers(const JobFlags& flags);

// Returns "host:port" of the job's store, without a request to it. If only the rendezvous is known, the
// rendezvous is asked; Unavailable then means that no round is running. Other errors are those of
// FindServers.
absl::StatusOr<std::string> FindStore(const JobFlags& flags);

// Returns `error` of a call to the store at `address`. If nothing answered there, the message says what that
// means and what to do.
absl::Status StoreError(const absl::Status& error, const std::string& address);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_MONITOR_FIND_JOB_H_
