// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_LAUNCHER_VARIABLES_H_
#define TANDEM_LAUNCHER_VARIABLES_H_

// The environment variables that the launcher sets for each process. docs/launcher.md has the table.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cluster/environment.h"
#include "cluster/rendezvous/rendezvous.h"
#include "launcher/plan/copies.h"
#include "launcher/plan/launch_plan.h"

namespace tandem::launcher {

using Variables = std::map<std::string, std::string>;

// One process's place in a round. A plain value, which borrows the plan, the role and the round.
struct ProcessSlot {
  const LaunchPlan* plan = nullptr;
  const RolePlan* role = nullptr;
  const cluster::Round* round = nullptr;
  int local_rank = 0;  // among the processes of the role on this node
  std::string run_id;
  std::string error_file;       // the file in which the program may leave its error message
  std::string spill_dir;        // for parameter servers; "" for other roles
  std::string wal_dir;          // for parameter servers that are durable; else ""
  std::string serving_dir;      // where a parameter server with followers tells that it serves; else ""
  std::string checkpoint_root;  // for parameter servers; "": that of the launcher's environment, if any
  std::string key_file;         // of the job's key
  std::string agent;            // host:port of the launcher's LauncherControl; "": there is none
  int64_t assignment = 0;       // the number of this round's assignment there
  absl::Duration lease = cluster::kDefaultLease;  // of every process of the job
  int restarts_alone = 0;                         // how often this process was restarted alone
  bool terminal = false;                          // the launcher shows the process's output on a terminal

  bool is_main() const { return role->name == plan->main; }
  // Returns which shard a parameter server serves, and which copy of it.
  CopyPlace copy_place() const {
    if (role->followers == 0) return {.shard = role_rank(), .copy = 0};
    return PlaceCopy(ServersByNode(*round), round->group_rank, local_rank);
  }
  // Returns the process's rank among all processes of its role in the round; for the main role this is RANK.
  // For followers see Environment::role_rank.
  int role_rank() const {
    if (role->followers == 0) return round->FirstRank(role->name) + local_rank;
    const CopyPlace place = copy_place();
    return place.shard + round->WorldSize(role->name) * place.copy;
  }
  // Returns the number of processes of the role in the round.
  int role_world_size() const { return round->WorldSize(role->name) * (role->followers + 1); }
};

// Returns the launcher's own environment.
Variables OwnVariables();

// Returns the environment of the process at `place`: `own` without the variables that an outer launcher may
// have set for this one, plus the variables of docs/launcher.md, plus those that the role declares.
Variables VariablesOf(const Variables& own, const ProcessSlot& place);

// Returns "NAME=value" for each variable, as Spawn takes them.
std::vector<std::string> ToStrings(const Variables& variables);

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_VARIABLES_H_
