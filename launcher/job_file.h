#ifndef TANDEM_LAUNCHER_JOB_FILE_H_
#define TANDEM_LAUNCHER_JOB_FILE_H_

// The file by which commands outside a job find it (`tandem status`, `top`, `table`, `trace`).

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tandem::launcher {

// The name of the file in a job's log directory in which `tandem run` records where the job can be reached.
inline constexpr char kJobFile[] = "job.json";

// Where a job can be reached. A plain value.
struct JobAddress {
  std::string store;       // host:port of the current round's store; "": only the rendezvous knows it
  std::string rendezvous;  // where the job's launchers meet; "": there is one launcher, or it is not known
  std::string run_id;      // the job's name at the rendezvous; "": the only job there
  int num_servers = 0;     // 0: unknown
};

// Replaces `directory`/kJobFile. Unavailable names the path that cannot be written.
absl::Status WriteJobFile(const std::string& directory, const JobAddress& job);

// Reads the job file at `path`. InvalidArgument if it is not one; other errors as ReadFile.
absl::StatusOr<JobAddress> ReadJobFile(const std::string& path);

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_JOB_FILE_H_
