// SPDX-License-Identifier: Apache-2.0
#include "collectives/elastic/assignment.h"

#include <map>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace tandem::collectives {

std::string Assignment::ToText() const {
  return absl::StrCat("number=", number, "\nepoch=", epoch, "\nrank=", rank, "\nworld_size=", world_size,
                      "\nlocal_rank=", local_rank, "\nlocal_world_size=", local_world_size,
                      "\ngroup_rank=", group_rank, "\nrestarts=", restarts, "\nstore=", store,
                      "\nmaster_addr=", master_addr, "\nmaster_port=", master_port);
}

absl::StatusOr<Assignment> Assignment::FromText(absl::string_view text) {
  std::map<std::string, std::string> values;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    std::pair<std::string, std::string> pair = absl::StrSplit(line, absl::MaxSplits('=', 1));
    values.insert(std::move(pair));
  }
  Assignment a;
  if (!absl::SimpleAtoi(values["number"], &a.number) || !absl::SimpleAtoi(values["epoch"], &a.epoch) ||
      !absl::SimpleAtoi(values["rank"], &a.rank) || !absl::SimpleAtoi(values["world_size"], &a.world_size) ||
      !absl::SimpleAtoi(values["local_rank"], &a.local_rank) ||
      !absl::SimpleAtoi(values["local_world_size"], &a.local_world_size) ||
      !absl::SimpleAtoi(values["group_rank"], &a.group_rank) ||
      !absl::SimpleAtoi(values["restarts"], &a.restarts) ||
      !absl::SimpleAtoi(values["master_port"], &a.master_port) || a.rank < 0 || a.rank >= a.world_size) {
    return absl::InvalidArgumentError(
        "the launcher's assignment is not understood: is it of another version?");
  }
  a.store = values["store"];
  a.master_addr = values["master_addr"];
  return a;
}

std::string AssignmentKey(int64_t number, absl::string_view process) {
  return absl::StrCat("agent/assignment/", number, "/", process);
}

std::string OverKey(int64_t number) { return absl::StrCat("agent/over/", number); }

}  // namespace tandem::collectives
