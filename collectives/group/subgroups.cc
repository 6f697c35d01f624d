// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "collectives/group/group.h"

namespace tandem::collectives {

// All ranks make the same subgroups in the same order, so that the counter gives them the same names
// everywhere.
std::string Group::NextSubgroupName() { return absl::StrCat(name(), ".", subgroups_.fetch_add(1)); }

absl::StatusOr<std::unique_ptr<ProcessGroup>> Group::MakeSubgroup(absl::Span<const int> ranks, int color,
                                                                  std::string subgroup_name,
                                                                  absl::string_view backend) {
  const auto me = std::find(ranks.begin(), ranks.end(), rank());
  const bool member = color >= 0 && me != ranks.end();
  Parts parts;
  parts.options = parts_.options;
  parts.error_file = parts_.error_file;
  parts.options.name = std::move(subgroup_name);
  parts.options.rank = member ? static_cast<int>(me - ranks.begin()) : 0;
  parts.options.world_size = member ? static_cast<int>(ranks.size()) : 1;
  for (const std::unique_ptr<Lane>& lane : lanes_) {
    if (!backend.empty() || !lane->CanSplit()) continue;
    BackendOptions options;
    options.group = parts.options.name;
    options.rank = parts.options.rank;
    options.world_size = parts.options.world_size;
    options.deadline = MonotonicNow() + parts.options.timeout;
    options.timeout = parts.options.timeout;
    absl::StatusOr<BackendFactory> split = lane->Split(member ? color : -1, parts.options.rank, options);
    if (!split.ok()) {
      return Annotate(split.status(), absl::StrCat("process group '", parts.options.name, "'"));
    }
    if (member) parts.split.push_back(*std::move(split));
  }
  if (!member) return std::unique_ptr<ProcessGroup>();
  if (!backend.empty()) parts.options.backend = std::string(backend);
  for (int r : ranks) parts.global_ranks.push_back(parts_.global_ranks[r]);
  parts.store = parts_.store;
  parts.recorder = parts_.recorder;
  parts.watchdog = parts_.watchdog;
  const std::string context = absl::StrCat("process group '", parts.options.name, "'");
  absl::StatusOr<std::unique_ptr<ProcessGroup>> made = Make(std::move(parts));
  if (!made.ok()) return Annotate(made.status(), context);
  return made;
}

absl::StatusOr<std::unique_ptr<ProcessGroup>> Group::NewGroup(absl::Span<const int> ranks,
                                                              absl::string_view backend) {
  // All ranks refuse together, so that their counters stay equal even if this call takes no name.
  auto refuse = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat("new_group on group '", name(), "': ", why));
  };
  if (ranks.empty()) return refuse("it has no ranks");
  std::vector<int> sorted(ranks.begin(), ranks.end());
  std::sort(sorted.begin(), sorted.end());
  if (sorted.front() < 0 || sorted.back() >= world_size()) {
    return refuse(absl::StrCat("rank ", sorted.front() < 0 ? sorted.front() : sorted.back(),
                               " is no rank of a group of ", world_size()));
  }
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end()) return refuse(absl::StrCat("rank ", *twice, " is given twice"));
  if (health_.broken()) return health_.error();
  const bool member = std::find(ranks.begin(), ranks.end(), rank()) != ranks.end();
  return MakeSubgroup(ranks, member ? 0 : -1, NextSubgroupName(), backend);
}

absl::StatusOr<std::unique_ptr<ProcessGroup>> Group::NewSubgroups(int size) {
  if (size < 1 || world_size() % size != 0) {
    return absl::InvalidArgumentError(absl::StrCat("new_subgroups on group '", name(), "': ", world_size(),
                                                   " ranks cannot be cut into groups of ", size));
  }
  if (health_.broken()) return health_.error();
  const int first = rank() / size * size;
  std::vector<int> ranks;
  for (int i = 0; i < size; ++i) ranks.push_back(first + i);
  return MakeSubgroup(ranks, first / size, absl::StrCat(NextSubgroupName(), "/", first / size), "");
}

absl::StatusOr<std::unique_ptr<ProcessGroup>> Group::Split(int color, int key) {
  const std::array<int32_t, 2> mine = {color, key};
  std::vector<int32_t> all(2 * static_cast<size_t>(world_size()));
  // Colors and keys are in this process's own memory.
  if (LaneOf(Device::Cpu()) == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("split on group '", name(),
                     "' needs a backend for CPU tensors; ask for one, as in \"cpu:auto,cuda:nccl\""));
  }
  const std::string subgroup = NextSubgroupName();
  TANDEM_RETURN_IF_ERROR(AllGather(absl::MakeConstSpan(mine), absl::MakeSpan(all), CallOptions()).status());
  if (color < 0) return MakeSubgroup({}, -1, absl::StrCat(subgroup, "/none"), "");
  std::vector<std::pair<int, int>> members;  // by key, then by rank
  for (int r = 0; r < world_size(); ++r) {
    if (all[2 * r] == color) members.emplace_back(all[2 * r + 1], r);
  }
  std::sort(members.begin(), members.end());
  std::vector<int> ranks;
  for (const auto& [unused, r] : members) ranks.push_back(r);
  return MakeSubgroup(ranks, color, absl::StrCat(subgroup, "/", color), "");
}

}  // namespace tandem::collectives
