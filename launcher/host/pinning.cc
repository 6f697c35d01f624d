// SPDX-License-Identifier: Apache-2.0
#include "launcher/host/pinning.h"

#include <sched.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/read_file.h"

namespace tandem::launcher {
namespace {

constexpr int kMostNodes = 256;

// Returns the text of a file of /sys, or "" if there is no such file.
std::string ReadValue(const std::string& path) {
  return std::string(absl::StripAsciiWhitespace(ReadFile(path).value_or("")));
}

int ReadNumber(const std::string& path) {
  int value;
  return absl::SimpleAtoi(ReadValue(path), &value) ? value : -1;
}

}  // namespace

std::vector<int> ParseProcessorList(const std::string& text) {
  std::vector<int> list;
  for (const absl::string_view part : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
    const std::pair<absl::string_view, absl::string_view> range =
        absl::StrSplit(part, absl::MaxSplits('-', 1));
    int first, last;
    if (!absl::SimpleAtoi(range.first, &first)) return {};
    last = first;
    if (!range.second.empty() && !absl::SimpleAtoi(range.second, &last)) return {};
    if (first < 0 || last < first || last >= CPU_SETSIZE) return {};
    for (int cpu = first; cpu <= last; ++cpu) list.push_back(cpu);
  }
  return list;
}

std::vector<int> AllowedProcessors() {
  std::vector<int> allowed;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof(set), &set) != 0) return allowed;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) allowed.push_back(cpu);
  }
  return allowed;
}

CpuTopology ReadCpuTopology(const std::string& sys, const std::vector<int>& allowed) {
  CpuTopology topology;
  const std::set<int> mine(allowed.begin(), allowed.end());
  std::map<int, int> node_of;
  for (const int node : ParseProcessorList(ReadValue(absl::StrCat(sys, "/node/online")))) {
    if (node >= kMostNodes) break;
    std::vector<int> cpus;
    for (const int cpu : ParseProcessorList(ReadValue(absl::StrCat(sys, "/node/node", node, "/cpulist")))) {
      if (!mine.contains(cpu)) continue;
      cpus.push_back(cpu);
      node_of[cpu] = node;
    }
    if (!cpus.empty()) topology.nodes.push_back(std::move(cpus));
  }
  if (topology.nodes.empty()) topology.nodes.push_back(allowed);
  // Ordered by (memory node, socket, core), so that consecutive cores share caches.
  std::map<std::tuple<int, int, int>, std::vector<int>> cores;
  for (const int cpu : allowed) {
    const std::string folder = absl::StrCat(sys, "/cpu/cpu", cpu, "/topology/");
    const int core = ReadNumber(folder + "core_id");
    const int socket = ReadNumber(folder + "physical_package_id");
    // A processor whose core is unknown counts as a core of its own, after the known cores.
    cores[{node_of[cpu], socket, core >= 0 ? core : CPU_SETSIZE + cpu}].push_back(cpu);
  }
  for (auto& [place, cpus] : cores) topology.cores.push_back(std::move(cpus));
  return topology;
}

std::vector<int> ProcessorsOf(const CpuTopology& topology, Bind bind, int index, int count) {
  if (bind == Bind::kNone) return {};
  const std::vector<std::vector<int>>& units = bind == Bind::kCore ? topology.cores : topology.nodes;
  const int size = static_cast<int>(units.size());
  if (size == 0) return {};
  if (bind == Bind::kNuma) return units[static_cast<size_t>(static_cast<int64_t>(index) * size / count)];
  if (count > size) return units[static_cast<size_t>(index % size)];
  std::vector<int> cpus;
  for (int i = index * size / count; i < (index + 1) * size / count; ++i) {
    cpus.insert(cpus.end(), units[static_cast<size_t>(i)].begin(), units[static_cast<size_t>(i)].end());
  }
  std::sort(cpus.begin(), cpus.end());
  return cpus;
}

}  // namespace tandem::launcher
