#ifndef TANDEM_LAUNCHER_VARIABLES_H_
#define TANDEM_LAUNCHER_VARIABLES_H_

// What each process is told by its environment. docs/launcher.md has the table.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "collectives/rendezvous/rendezvous.h"
#include "launcher/plan/launch_plan.h"

namespace tandem::launcher {

using Variables = std::map<std::string, std::string>;

// Where a process stands. A plain value; borrows the plan and the round.
struct ProcessSlot {
  const LaunchPlan* plan = nullptr;
  const RolePlan* role = nullptr;
  const collectives::Round* round = nullptr;
  int local_rank = 0;  // among the processes of the role on this node
  std::string run_id;
  std::string error_file;  // where the program may leave why it failed
  std::string spill_dir;   // of parameter servers
  std::string agent;       // where the processes hear of later rounds; "": they do not
  int64_t assignment = 0;  // which of the rounds told there this one is
  int restarts_alone = 0;  // how often this process has come back by itself
  bool terminal = false;   // its output goes to a terminal

  bool is_main() const { return role->name == plan->main; }
  // RANK of the main role's, and of any role the place in it.
  int role_rank() const { return round->FirstRank(role->name) + local_rank; }
};

// The launcher's own environment.
Variables OwnVariables();

// `own`, without what an outer launcher has told this one, with what this process is told.
Variables VariablesOf(const Variables& own, const ProcessSlot& place);

// "NAME=value", for Spawn.
std::vector<std::string> ToStrings(const Variables& variables);

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_VARIABLES_H_
