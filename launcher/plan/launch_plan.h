#ifndef TANDEM_LAUNCHER_PLAN_LAUNCH_PLAN_H_
#define TANDEM_LAUNCHER_PLAN_LAUNCH_PLAN_H_

// Which processes a launcher starts on its node: roles, how many of each, and what becomes of one that dies.

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "launcher/plan/flags.h"

namespace tandem::launcher {

inline constexpr int kMostProcesses = 4096;  // of a role

enum class Restart {
  kJob,    // a death is a failure of the job, which is restarted as a whole, or ends
  kAlone,  // the process comes back by itself
};
enum class Bind { kNone, kCore, kNuma };

// A plain value.
struct RolePlan {
  std::string name;
  int count = 1;        // processes on this node
  bool serves = false;  // stopped when the others have finished; its own end before that is a failure
  Restart restart = Restart::kJob;
  int restart_limit = 10;  // of a process restarted alone: deaths in a row, each soon after its start
  Bind bind = Bind::kNone;
  std::vector<std::string> command;  // empty: `tandem ps` for "ps", else the job's program
  std::map<std::string, std::string> environment;
};

// A plain value.
struct LaunchPlan {
  std::vector<RolePlan> roles;  // servers first; each name once, each count at least 1
  std::string main;             // whose processes have a RANK; may have none on this node
  int max_restarts = 0;
  bool reform = false;

  const RolePlan* Find(absl::string_view role) const;
  int Count(absl::string_view role) const;
};

// From the flags, the cluster file that they may name, and the program's command line. All that can be wrong
// with them is InvalidArgument, in the words of the flag or with the file's line.
absl::StatusOr<LaunchPlan> MakePlan(const RunFlags& flags, const std::vector<std::string>& program);

// --nproc-per-node's number: "4", "cpu", "gpu" or "auto" on this machine.
absl::StatusOr<int> ProcessesPerNode(absl::string_view text);

// What is executed for `words` under --module, --no-python and --run-path, as torchrun does: a script by
// Python.
absl::StatusOr<std::vector<std::string>> ProgramCommand(const RunFlags& flags,
                                                        const std::vector<std::string>& words);

// Words of a command in one string: separated by blanks, '...' and "..." keep them together.
absl::StatusOr<std::vector<std::string>> SplitCommand(absl::string_view text);

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_PLAN_LAUNCH_PLAN_H_
