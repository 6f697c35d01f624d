// SPDX-License-Identifier: Apache-2.0
#include "base/cgroup.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/read_file.h"

namespace tandem {
namespace {

// Returns the directories of this process's group for `controller` and of the groups above it, for cgroup
// versions 2 and 1; some may not exist.
std::vector<std::string> Directories(FileReader read, const std::string& controller) {
  std::vector<std::string> directories;
  const auto add = [&](const std::string& root, std::string path) {
    while (path.size() > 1) {
      directories.push_back(root + path);
      path.resize(path.rfind('/'));
    }
    directories.push_back(root);
  };
  // The root, because a container often has its own group's directory mounted there.
  add("/sys/fs/cgroup", "");
  add(absl::StrCat("/sys/fs/cgroup/", controller), "");
  const absl::StatusOr<std::string> groups = read("/proc/self/cgroup");
  if (!groups.ok()) return directories;
  for (const absl::string_view line : absl::StrSplit(*groups, '\n')) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));  // 4:cpu,cpuacct:/x
    if (parts.size() != 3 || parts[2].empty() || parts[2][0] != '/') continue;
    if (parts[0] == "0") {
      add("/sys/fs/cgroup", parts[2]);
    } else {
      const std::vector<std::string> names = absl::StrSplit(parts[1], ',');
      if (std::find(names.begin(), names.end(), controller) == names.end()) continue;
      add(absl::StrCat("/sys/fs/cgroup/", controller), parts[2]);
    }
  }
  return directories;
}

template <typename T>
void Lower(std::optional<T>* value, T other) {
  if (!value->has_value() || other < **value) *value = other;
}

}  // namespace

std::optional<uint64_t> CgroupMemoryLimit(FileReader read) {
  std::optional<uint64_t> limit;
  for (const std::string& directory : Directories(read, "memory")) {
    for (const char* file : {"/memory.max", "/memory.limit_in_bytes"}) {
      const absl::StatusOr<std::string> text = read(directory + file);
      uint64_t bytes = 0;
      // No limit is "max" in version 2, and the largest number of pages in version 1.
      if (text.ok() && absl::SimpleAtoi(*text, &bytes) && bytes < (uint64_t{1} << 60)) Lower(&limit, bytes);
    }
  }
  return limit;
}

std::optional<double> CgroupCoreQuota(FileReader read) {
  std::optional<double> quota;
  for (const std::string& directory : Directories(read, "cpu")) {
    std::vector<std::string> words;  // quota and period in microseconds; "max" or -1: none
    if (const auto both = read(directory + "/cpu.max"); both.ok()) {
      words = absl::StrSplit(*both, ' ');
    } else {
      for (const char* file : {"/cpu.cfs_quota_us", "/cpu.cfs_period_us"}) {
        if (const auto text = read(directory + file); text.ok()) words.push_back(*text);
      }
    }
    double time = 0, period = 0;
    if (words.size() == 2 && absl::SimpleAtod(words[0], &time) && absl::SimpleAtod(words[1], &period) &&
        time > 0 && period > 0) {
      Lower(&quota, time / period);
    }
  }
  return quota;
}

uint64_t UsableMemory() {
  const auto read = [](const std::string& path) { return ReadFile(path); };
  uint64_t least =
      static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  least = std::min(least, CgroupMemoryLimit(read).value_or(least));
  for (const auto resource : {RLIMIT_AS, RLIMIT_DATA}) {
    rlimit limit = {};
    if (::getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
      least = std::min<uint64_t>(least, limit.rlim_cur);
  }
  return least;
}

}  // namespace tandem
