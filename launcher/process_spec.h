// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_LAUNCHER_PROCESS_SPEC_H_
#define TANDEM_LAUNCHER_PROCESS_SPEC_H_

// Turns the launch plan and a round into the specification of each process: its command line, environment
// variables, files and processors.

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cluster/environment.h"
#include "cluster/rendezvous/rendezvous.h"
#include "launcher/plan/launch_plan.h"
#include "launcher/plan/streams.h"
#include "launcher/process/processes.h"
#include "launcher/variables.h"

namespace tandem::launcher {

// The part of a process's specification that is the same for all processes of this node in all rounds. A
// plain value.
struct NodeOptions {
  LaunchPlan plan;
  std::string run_id;
  absl::Duration lease = cluster::kDefaultLease;  // of every process of the job
  std::string self;                               // the path of this program
  std::string log_dir;                            // exists
  std::string attempts_dir;                       // holds attempt_<n>/<local rank>/
  std::string key_file;                           // absolute, of the job's key; NodeAgent writes it
  std::string spill_dir;
  std::string wal_dir;          // absolute; "": servers are not durable
  std::string checkpoint_root;  // absolute; "": servers inherit TANDEM_CHECKPOINT_ROOT, if it is set
  StreamChoice redirects, tee;
  std::optional<std::set<int>> shown;  // local ranks of the main role whose output is shown; nullopt: all
  int metrics_port = -1;        // of the node's first parameter server; 0: the kernel picks; -1: no metrics
  bool terminal_input = false;  // whether the launcher's terminal becomes the stdin of its only process
  std::string advertise;        // the address at which other nodes reach this one; "": there are none
};

// A process of the plan, as far as it is the same in all rounds. A plain value, which borrows the plan's
// role.
struct PlannedProcess {
  const RolePlan* role = nullptr;
  int local_rank = 0;
  std::string program;    // path
  std::vector<int> cpus;  // the processors it may use; empty: all
};

// Returns the processes of `options.plan` in its order, with their programs looked up and their processors
// assigned. The result borrows `options`. Errors are those of FindProgram.
absl::StatusOr<std::vector<PlannedProcess>> PlanProcesses(const NodeOptions& options);

// A round, as the processes of this node see it. A plain value.
struct NodeRound {
  cluster::Round round;
  int64_t assignment = 0;  // the number of the round's Assignment
  std::string agent;       // host:port of the LauncherControl's store; "": there is none
};

// Makes specifications. Not thread-safe.
class ProcessSpecFactory {
 public:
  // `options` is borrowed. `terminal`: whether the launcher's stdout is a terminal.
  ProcessSpecFactory(const NodeOptions* options, bool terminal)
      : options_(*options), terminal_(terminal), own_(OwnVariables()) {}

  // Returns the specification of `process` in `round`, after `restarts_alone` restarts alone. Creates the
  // attempt's directory and removes an old error file from it. The first specification with a certain log
  // file empties that file, later ones append to it. A parameter server listens at `server_port`; 0: the
  // kernel picks. Returns Unavailable if the directory cannot be created, and the errors of SetLogAside.
  absl::StatusOr<ProcessSpec> Make(const PlannedProcess& process, const NodeRound& round, int restarts_alone,
                                   int server_port = 0);

 private:
  // Returns the directory for the log of the server at `place`. If there is one from before this launcher, it
  // is set aside: its tables are not this round's. Errors are those of SetLogAside.
  absl::StatusOr<std::string> WalDirOf(const ProcessSlot& place);
  // Returns the command line of the parameter server at `place`.
  std::vector<std::string> ServerCommand(const ProcessSlot& place, int port) const;
  // Creates the directory of the files of the process at `place` in this attempt, and returns its path.
  absl::StatusOr<std::string> MakeAttemptDir(const ProcessSlot& place) const;
  // Chooses the files and the console streams of the process at `place`.
  OutputFiles FilesOf(const ProcessSlot& place, const std::string& name, const std::string& attempt);

  const NodeOptions& options_;
  const bool terminal_;
  const Variables own_;             // the launcher's own environment
  std::set<std::string> logs_;      // log files of earlier specifications
  std::set<std::string> wal_dirs_;  // directories that WalDirOf has returned
};

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_PROCESS_SPEC_H_
