// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_LAUNCHER_JOB_FILE_H_
#define TANDEM_LAUNCHER_JOB_FILE_H_

// The job file tells commands outside a job (`tandem status`, `top`, `table`, `trace`) how to reach it. It is
// a JSON object.

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rpc/security/job_key.h"

namespace tandem::launcher {

// The file's name in a job's log directory. On every node, `tandem run` rewrites it at the start of each
// round.
inline constexpr char kJobFile[] = "job.json";
// The file of the job's key (rpc::JobKey) in the same directory, or a link to it. Only the user who started
// the job can read it.
inline constexpr char kKeyFile[] = "key";

// The address of a job. A plain value.
struct JobAddress {
  std::string store;       // host:port of the current round's store; "": only the rendezvous knows it
  std::string rendezvous;  // host:port or etcd URL of the rendezvous; "": one launcher only, or not known
  std::string run_id;      // the job's name at the rendezvous; "": the only job there
  int num_servers = 0;     // parameter servers of the round; 0: none, or unknown
  std::string key_file;    // the absolute path of the job's key; "": not known
};

// Replaces the file `directory`/kKeyFile, which this user alone can read; makes the directory if it is
// missing. Returns its absolute path. Errors as of WriteJobFile.
absl::StatusOr<std::string> WriteKeyFile(const std::string& directory, const rpc::JobKey& key);

// Returns the path of the audit log of the processes whose key is `key_file` (rpc/security/audit_log.h).
std::string AuditFileBeside(const std::string& key_file);

// Replaces the file `directory`/kJobFile, and `directory`/kKeyFile by a link to a key that is elsewhere; the
// directory must exist. A concurrent reader sees the earlier content or the new one. Returns Unavailable,
// with the path, if a file cannot be written; it is then unchanged.
absl::Status WriteJobFile(const std::string& directory, const JobAddress& job);

// Reads the job file at `path`, the file and not its directory, and looks whether there is a key. Absent
// fields other than `store` keep their defaults. Returns InvalidArgument if it is not a whole job file; other
// errors are those of ReadFile (NotFound, ...).
absl::StatusOr<JobAddress> ReadJobFile(const std::string& path);

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_JOB_FILE_H_
