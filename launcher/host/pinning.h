// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_LAUNCHER_HOST_PINNING_H_
#define TANDEM_LAUNCHER_HOST_PINNING_H_

// Chooses the processors that each process of a node may use (--bind).

#include <string>
#include <vector>

#include "launcher/plan/launch_plan.h"

namespace tandem::launcher {

// The processors that this launcher may use, by core and by memory node. A plain value.
struct CpuTopology {
  // The hardware threads of each core; cores ordered by memory node, socket and core number.
  std::vector<std::vector<int>> cores;
  std::vector<std::vector<int>> nodes;  // the processors of each memory node, without empty nodes
};

// Reads this machine's topology, restricted to the processors in `allowed`. Where /sys does not tell (a
// container's may be empty), all processors are taken to be in one memory node, and each to be a core. `sys`
// is "/sys/devices/system" except in tests.
CpuTopology ReadCpuTopology(const std::string& sys, const std::vector<int>& allowed);

// Returns the processors that the calling thread may use.
std::vector<int> AllowedProcessors();

// Returns the processors for process `index` of `count` processes that have the same `bind`:
//
// - kCore: an equal share of consecutive whole cores; with more processes than cores, core `index` modulo the
//   number of cores.
// - kNuma: one memory node; with more processes than nodes, consecutive processes share a node.
// - kNone: an empty list, which means all.
//
// The list is also empty if the topology is.
std::vector<int> ProcessorsOf(const CpuTopology& topology, Bind bind, int index, int count);

// Parses a list such as "0-3,8", as in /sys and in Cpus_allowed_list. Returns an empty list for other text.
std::vector<int> ParseProcessorList(const std::string& text);

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_HOST_PINNING_H_
