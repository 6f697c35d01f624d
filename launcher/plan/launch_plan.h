// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_LAUNCHER_PLAN_LAUNCH_PLAN_H_
#define TANDEM_LAUNCHER_PLAN_LAUNCH_PLAN_H_

// The launch plan: the processes that a launcher starts on its node (roles and counts), and what happens when
// one of them dies.

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "launcher/plan/flags.h"

namespace tandem::launcher {

inline constexpr int kMostProcesses = 4096;  // of one role

// The consequence of the death of a process, by role.
enum class Restart {
  kJob,    // the job has failed: it is restarted as a whole, or ends
  kAlone,  // only this process is started again
};
// The processors that the processes of a role may use: all, whole cores, or the processors of a memory node.
enum class Bind { kNone, kCore, kNuma };

// A plain value.
struct RolePlan {
  std::string name;
  int count = 1;        // processes on this node, without followers
  bool serves = false;  // stopped once the other roles have finished; ending before that is a failure
  Restart restart = Restart::kJob;
  int restart_limit = 10;  // restarts in a row of one process under kAlone, each soon after the last start
  Bind bind = Bind::kNone;
  // Empty: `tandem ps` for the role "ps"; for other roles MakePlan fills in the job's program.
  std::vector<std::string> command;
  // The file that `command` runs with the Python interpreter that MakePlan put in front of it; else empty.
  std::string script;
  std::map<std::string, std::string> environment;
  // The number of followers of each server, for the role "ps". This node starts as many followers as its own
  // servers have, but of servers of other nodes if there are any (launcher/plan/copies.h).
  int followers = 0;
  // Copies that must hold a push before it is acknowledged, for the role "ps". 0: not given, so that
  // TANDEM_PS_MIN_COPIES of the launcher's environment applies, or 1.
  int min_copies = 0;

  // Returns the number of processes on this node.
  int processes() const { return count * (followers + 1); }
};

// A plain value.
struct LaunchPlan {
  std::vector<RolePlan> roles;  // those that serve first; each name once, each count at least 1
  std::string main;             // the role whose processes have a RANK; it may have none on this node
  int max_restarts = 0;         // of the whole job
  bool reform = false;          // whether a failure leaves the other processes running (--on-failure reform)

  // Returns the plan of `role`, or nullptr if this node has no process of it.
  const RolePlan* Find(absl::string_view role) const;
  // Returns the number of this node's processes of `role`, without followers, or 0.
  int Count(absl::string_view role) const;
  // Returns whether the job can go on in the same round without this node, and with another one in its place:
  // all of its roles are restarted alone, and serve or are the main role, its parameter servers have
  // followers, and rounds are not re-formed.
  bool IsReplaceable() const;
  // Returns whether some of this node's processes end by themselves.
  bool HasWork() const;
};

// Makes the plan from the flags, the cluster file that they may name, and the program's command line. Returns
// InvalidArgument for every mistake in them, naming the flag or the file's line; other errors are those of
// reading the cluster file.
absl::StatusOr<LaunchPlan> MakePlan(const RunFlags& flags, const std::vector<std::string>& program);

// Returns the number that --nproc-per-node means on this machine: "4", "cpu" (usable processors), "gpu", or
// "auto" (GPUs, or processors if there is no GPU). Returns InvalidArgument for other text, and for "gpu" on a
// machine without one.
absl::StatusOr<int> ProcessesPerNode(absl::string_view text);

// Returns the command line that runs `words` under --module, --no-python and --run-path, as torchrun does: a
// program that ends in ".py" is run by Python. `words` must not be empty. Returns InvalidArgument for
// --module together with --no-python.
absl::StatusOr<std::vector<std::string>> ProgramCommand(const RunFlags& flags,
                                                        const std::vector<std::string>& words);

// Splits a command into words at white space; '...' and "..." keep white space within a word. Returns
// InvalidArgument for a quote that is not closed.
absl::StatusOr<std::vector<std::string>> SplitCommand(absl::string_view text);

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_PLAN_LAUNCH_PLAN_H_
