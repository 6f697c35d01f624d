#ifndef TANDEM_LAUNCHER_HOST_PINNING_H_
#define TANDEM_LAUNCHER_HOST_PINNING_H_

// Which processors each process of a node may use.

#include <string>
#include <vector>

#include "launcher/plan/launch_plan.h"

namespace tandem::launcher {

// The processors that this launcher may use itself. A plain value.
struct CpuTopology {
  std::vector<std::vector<int>> cores;  // the hardware threads of each, in the order of sockets
  std::vector<std::vector<int>> nodes;  // the processors of each memory node that has any of them
};

// Of this machine, restricted to `allowed`; what /sys does not tell (a container's may be empty) is taken to
// be one memory node and cores of one thread. `sys` is "/sys/devices/system", other folders are for tests.
CpuTopology ReadCpuTopology(const std::string& sys, const std::vector<int>& allowed);

// The processors that the calling thread may use.
std::vector<int> AllowedProcessors();

// For the `index`th of `count` processes that are bound alike: kCore gives each an equal run of whole cores,
// or one core by turns when there are more processes than cores; kNuma one memory node each, neighbours
// sharing one when there are more processes than nodes. Empty: all.
std::vector<int> ProcessorsOf(const CpuTopology& topology, Bind bind, int index, int count);

// "0-3,8": as in /sys and in Cpus_allowed_list. Empty for text that is no such list.
std::vector<int> ParseProcessorList(const std::string& text);

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_HOST_PINNING_H_
