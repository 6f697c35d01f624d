// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/cluster_file.h"

#include <map>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/config_field.h"
#include "cluster/environment.h"
#include "launcher/plan/copies.h"
#include "worker/job/fields.h"
#include "worker/job/job_errors.h"
#include "worker/job/load_yaml.h"
#include "yaml-cpp/yaml.h"

namespace tandem::launcher {
namespace {

using worker::Fields;
using worker::JobErrors;

int Line(const YAML::Node& node) { return node.Mark().line + 1; }

// Returns the mapping `map` without the field `name`, and stores that field's value in `taken`.
YAML::Node Without(const YAML::Node& map, const std::string& name, YAML::Node* taken) {
  YAML::Node rest(YAML::NodeType::Map);
  for (const auto& entry : map) {
    if (entry.first.IsScalar() && entry.first.Scalar() == name) {
      taken->reset(entry.second);
    } else {
      rest.force_insert(entry.first, entry.second);
    }
  }
  return rest;
}

// Reads a mapping of environment variables. ReadFields cannot, because it knows only declared names.
void ReadEnvironment(const YAML::Node& node, const std::string& path, JobErrors* errors,
                     std::map<std::string, std::string>* environment) {
  if (node.IsNull()) return;  // not given
  if (!node.IsMap())
    return errors->Add(path, Line(node),
                       absl::StrCat("'", path, "' must be a mapping: lines of 'NAME: value'"));
  for (const auto& entry : node) {
    const std::string name = entry.first.IsScalar() ? entry.first.Scalar() : "";
    if (name.empty() || name.find('=') != std::string::npos) {
      errors->Add(path, Line(entry.first), absl::StrCat("'", name, "' is no name of a variable"));
    } else if (!entry.second.IsScalar()) {
      errors->Add(path, Line(entry.second), absl::StrCat("'", path, ".", name, "' must be text or a number"));
    } else {
      (*environment)[name] = entry.second.Scalar();
    }
  }
}

// Reads a command, which is one text or a list of words.
void ReadProgram(const YAML::Node& node, const std::string& path, JobErrors* errors,
                 std::vector<std::string>* command) {
  if (node.IsNull()) return;  // not given
  if (node.IsScalar()) {
    absl::StatusOr<std::vector<std::string>> words = SplitCommand(node.Scalar());
    if (words.ok() && !words->empty()) {
      *command = *std::move(words);
      return;
    }
    return errors->Add(
        path, Line(node),
        words.ok() ? absl::StrCat("'", path, "' must be a command") : std::string(words.status().message()));
  }
  command->clear();
  if (node.IsSequence()) {
    for (const YAML::Node& word : node) {
      if (!word.IsScalar())
        return errors->Add(path, Line(word), absl::StrCat("'", path, "' must be a list of words"));
      command->push_back(word.Scalar());
    }
  }
  if (command->empty())
    errors->Add(path, Line(node),
                absl::StrCat("'", path, "' must be a command: one text, or a list of words"));
}

RolePlan ReadRole(const YAML::Node& node, const std::string& name, JobErrors* errors) {
  RolePlan role = DefaultRole(name);
  const std::string path = absl::StrCat("roles.", name);
  if (!node.IsMap()) {
    errors->Add(path, Line(node), absl::StrCat("'", path, "' must be a mapping, such as {count: 2}"));
    return role;
  }
  YAML::Node environment, program;
  const YAML::Node rest = Without(Without(node, "environment", &environment), "program", &program);
  ReadEnvironment(environment, absl::StrCat(path, ".environment"), errors, &role.environment);
  ReadProgram(program, absl::StrCat(path, ".program"), errors, &role.command);
  worker::ReadFields(rest, path, errors, [&role, &name](Fields& f) {
    f.Integer("count", &role.count, {.min = 0, .max = kMostProcesses}, "processes of the role on each node");
    f.Bool("serves", &role.serves, "the role is stopped when the others have ended");
    f.Choice("restart", &role.restart, {"job", "alone"}, "what a failure of a process restarts");
    f.Integer("restart_limit", &role.restart_limit, AtLeast(0), "restarts of one process by itself");
    if (name == "ps") {
      f.Integer("followers", &role.followers, {.min = 0, .max = cluster::kMostFollowers},
                "copies of each server that take over when it dies");
      f.Integer("min_copies", &role.min_copies, {.min = 1, .max = cluster::kMostFollowers + 1},
                "copies that hold a push before it is acknowledged");
    }
    f.Choice("bind", &role.bind, {"none", "core", "numa"}, "what each process is pinned to");
  });
  return role;
}

void ReadRoles(const YAML::Node& node, JobErrors* errors, LaunchPlan* plan) {
  if (!node.IsMap() || node.size() == 0) {
    return errors->Add("roles", node.IsNull() ? 0 : Line(node),
                       "'roles' must be a mapping of roles, such as 'worker: {count: 4, program: ./train}'");
  }
  for (const auto& entry : node) {
    const std::string name = entry.first.IsScalar() ? entry.first.Scalar() : "";
    if (const absl::Status status = CheckRoleName(name); !status.ok()) {
      errors->Add("roles", Line(entry.first), status.message());
    } else if (plan->Find(name) != nullptr) {
      errors->Add(absl::StrCat("roles.", name), Line(entry.first), "the role is there twice");
    } else {
      plan->roles.push_back(ReadRole(entry.second, name, errors));
    }
  }
}

}  // namespace

RolePlan DefaultRole(absl::string_view name) {
  RolePlan role;
  role.name = std::string(name);
  role.serves =
      name == "ps" || name == kFollowersRole || name == "replay" || name == "actor" || name == "inference";
  if (name == "actor" || name == "inference") role.restart = Restart::kAlone;
  return role;
}

absl::Status CheckRoleName(absl::string_view name) {
  bool good = !name.empty() && name.size() <= 64;
  for (const char c : name) good = good && (absl::ascii_isalnum(c) || c == '-' || c == '_');
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("'", name, "' is no name of a role: at most 64 letters, digits, '-' and '_'"));
}

absl::Status ReadClusterFile(absl::string_view text, const std::string& file_name, LaunchPlan* plan) {
  JobErrors errors(file_name);
  try {
    const YAML::Node root = worker::LoadYaml(text);
    if (!root.IsMap()) {
      errors.Add("", 1, "a cluster file is a mapping: lines of 'field: value', one of them 'roles:'");
      return errors.ToStatus();
    }
    YAML::Node roles, environment;
    const YAML::Node rest = Without(Without(root, "roles", &roles), "environment", &environment);
    worker::ReadFields(rest, "", &errors, [plan](Fields& f) {
      f.Text("main", &plan->main, "the role whose processes have ranks");
      f.Integer("max_restarts", &plan->max_restarts, AtLeast(0), "restarts of the whole job");
      f.Choice("on_failure", &plan->reform, {"restart", "reform"}, "what follows a failure");
    });
    ReadRoles(roles, &errors, plan);
    std::map<std::string, std::string> of_all;
    ReadEnvironment(environment, "environment", &errors, &of_all);
    for (RolePlan& role : plan->roles) role.environment.insert(of_all.begin(), of_all.end());
    if (!plan->main.empty() && errors.empty() && plan->Find(plan->main) == nullptr) {
      errors.Add("main", 0, absl::StrCat("there is no role '", plan->main, "'"));
    }
  } catch (const YAML::Exception& e) {
    errors.Add("", e.mark.line + 1, absl::StrCat("no YAML: ", e.msg));
  }
  return errors.ToStatus();
}

}  // namespace tandem::launcher
