// SPDX-License-Identifier: Apache-2.0
#include "launcher/variables.h"

#include "absl/strings/str_cat.h"
#include "cluster/membership/beat.h"
#include "launcher/job_file.h"
#include "rpc/security/audit_log.h"
#include "rpc/security/job_key.h"

extern char** environ;

namespace tandem::launcher {
namespace {

// Variables that an outer launcher (`tandem run` or torchrun) may have set for this one. They are not passed
// on.
constexpr const char* kOuter[] = {"RANK",
                                  "WORLD_SIZE",
                                  "LOCAL_RANK",
                                  "LOCAL_WORLD_SIZE",
                                  "GROUP_RANK",
                                  "ROLE_RANK",
                                  "ROLE_WORLD_SIZE",
                                  "ROLE_NAME",
                                  "MASTER_ADDR",
                                  "MASTER_PORT",
                                  "GROUP_WORLD_SIZE",
                                  "TORCHELASTIC_ERROR_FILE",
                                  "TANDEM_PS_INDEX",
                                  "TANDEM_PS_COPY",
                                  "TANDEM_PS_FOLLOWERS",
                                  "TANDEM_SERVING_DIR",
                                  "TANDEM_TERMINAL",
                                  "TANDEM_SPILL_DIR",
                                  "TANDEM_WAL_DIR",
                                  "TANDEM_AGENT",
                                  "TANDEM_ASSIGNMENT",
                                  "TANDEM_PROCESS_RESTARTS",
                                  "TANDEM_PROCESS",
                                  cluster::kBeatVariable};

}  // namespace

Variables OwnVariables() {
  Variables variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (const size_t equals = text.find('='); equals != std::string::npos) {
      variables[text.substr(0, equals)] = text.substr(equals + 1);
    }
  }
  return variables;
}

Variables VariablesOf(const Variables& own, const ProcessSlot& place) {
  const cluster::Round& round = *place.round;
  const cluster::Node& first = round.nodes[0];
  const RolePlan& role = *place.role;
  const std::map<std::string, int>& here = round.nodes[static_cast<size_t>(round.group_rank)].processes;
  const auto count_here = [&here](const std::string& name) {
    const auto it = here.find(name);
    return it == here.end() ? 0 : it->second;
  };
  Variables variables = own;
  for (const char* name : kOuter) variables.erase(name);
  const auto set = [&variables](const char* name, const auto& value) {
    variables[name] = absl::StrCat(value);
  };

  const int workers = round.WorldSize(place.plan->main);
  // Workers that are started by hand need a world size even if the job has servers only.
  set("WORLD_SIZE", workers > 0 ? workers : 1);
  set("LOCAL_WORLD_SIZE", count_here(role.name == "ps" ? place.plan->main : role.name));
  set("MASTER_ADDR", first.host);
  set("MASTER_PORT", first.master_port);
  if (place.is_main()) set("RANK", place.role_rank());
  if (role.name == "ps") {
    const CopyPlace copy = place.copy_place();
    set("TANDEM_PS_INDEX", copy.shard);
    if (role.min_copies > 0) set("TANDEM_PS_MIN_COPIES", role.min_copies);
    if (role.followers > 0) {
      set("TANDEM_PS_COPY", copy.copy);
      set("TANDEM_SERVING_DIR", place.serving_dir);
    }
    if (!place.spill_dir.empty()) set("TANDEM_SPILL_DIR", place.spill_dir);
    if (!place.wal_dir.empty()) set("TANDEM_WAL_DIR", place.wal_dir);
    if (!place.checkpoint_root.empty()) set("TANDEM_CHECKPOINT_ROOT", place.checkpoint_root);
  } else {
    set("LOCAL_RANK", place.local_rank);
  }
  set("GROUP_RANK", round.group_rank);
  set("GROUP_WORLD_SIZE", round.nodes.size());
  set("ROLE_NAME", role.name);
  set("ROLE_RANK", place.role_rank());
  set("ROLE_WORLD_SIZE", place.role_world_size());
  set("TORCHELASTIC_RESTART_COUNT", round.restarts);
  set("TORCHELASTIC_MAX_RESTARTS", place.plan->max_restarts);
  set("TORCHELASTIC_RUN_ID", place.run_id);
  set("TORCHELASTIC_USE_AGENT_STORE", "False");
  set("TORCHELASTIC_ERROR_FILE", place.error_file);

  set("TANDEM_ROLE", role.name);
  set("TANDEM_NUM_PS", round.WorldSize("ps"));
  if (const int followers = FollowersOf(round); followers > 0) set("TANDEM_PS_FOLLOWERS", followers);
  set("TANDEM_STORE", first.store);
  set("TANDEM_RUN_ID", place.run_id);
  set("TANDEM_EPOCH", round.epoch);
  set(cluster::kLeaseVariable, absl::ToDoubleSeconds(place.lease));
  variables.erase(rpc::kKeyVariable);  // the launcher's own key
  set(rpc::kKeyFileVariable, place.key_file);
  // Beside the key, in the log directory. A program's own choice stays.
  if (!variables.contains(rpc::kAuditVariable)) {
    set(rpc::kAuditVariable, AuditFileBeside(place.key_file));
  }
  if (place.restarts_alone > 0) set("TANDEM_PROCESS_RESTARTS", place.restarts_alone);
  if (!place.agent.empty()) {
    set("TANDEM_AGENT", place.agent);
    set("TANDEM_ASSIGNMENT", place.assignment);
  }
  if (place.terminal) set("TANDEM_TERMINAL", "1");
  // As torchrun does: many processes share the machine, and a program that wants threads sets the variable.
  variables.try_emplace("OMP_NUM_THREADS", "1");
  // As torchrun does. PyTorch before 2.2 knows only NCCL_ASYNC_ERROR_HANDLING, of which later versions warn.
  if (!variables.contains("NCCL_ASYNC_ERROR_HANDLING")) {
    variables.try_emplace("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  }
  for (const auto& [name, value] : role.environment) variables[name] = value;
  return variables;
}

std::vector<std::string> ToStrings(const Variables& variables) {
  std::vector<std::string> strings;
  for (const auto& [name, value] : variables) strings.push_back(absl::StrCat(name, "=", value));
  return strings;
}

}  // namespace tandem::launcher
