// SPDX-License-Identifier: Apache-2.0
#include "cluster/metrics/process_metrics.h"

#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <optional>
#include <sstream>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"

namespace tandem::cluster {
namespace {

void AddProcessFigure(std::string* out, absl::string_view name, absl::string_view type,
                      absl::string_view help, std::optional<double> value) {
  if (!value.has_value()) return;
  absl::StrAppend(out, "# HELP ", name, " ", help, "\n# TYPE ", name, " ", type, "\n", name, " ");
  absl::StrAppendFormat(out, "%.15g\n", *value);
}

double SecondsOf(const timeval& time) {
  return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
}

// Returns the number of entries of /proc/self/fd, without the one that reads it.
std::optional<double> OpenDescriptors() {
  DIR* const directory = ::opendir("/proc/self/fd");
  if (directory == nullptr) return std::nullopt;
  const absl::Cleanup close = [directory] { ::closedir(directory); };
  double entries = 0;
  for (const dirent* entry = ::readdir(directory); entry != nullptr; entry = ::readdir(directory)) {
    entries += entry->d_name[0] == '.' ? 0 : 1;
  }
  return entries - 1;
}

// The values of /proc/self/stat that are exported (proc(5)).
struct ProcessStat {
  double start_ticks;  // since the machine was started
  double virtual_bytes;
  double resident_pages;
};

std::optional<ProcessStat> ReadProcessStat() {
  std::ifstream file("/proc/self/stat");
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  // The second field, the program's name in parentheses, may hold anything.
  const size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(line.substr(name_end + 1));
  std::string skipped;
  for (int field = 3; field < 22; ++field) fields >> skipped;
  ProcessStat stat = {};
  fields >> stat.start_ticks >> stat.virtual_bytes >> stat.resident_pages;
  return fields ? std::optional<ProcessStat>(stat) : std::nullopt;
}

// Returns when the machine was started, in seconds since 1970.
std::optional<double> BootTime() {
  std::ifstream file("/proc/stat");
  std::string word;
  while (file >> word) {
    double seconds = 0;
    if (word == "btime" && file >> seconds) return seconds;
    std::getline(file, word);
  }
  return std::nullopt;
}

}  // namespace

std::string ProcessMetricsText() {
  std::string out;
  rusage usage = {};
  if (::getrusage(RUSAGE_SELF, &usage) == 0) {
    AddProcessFigure(&out, "process_cpu_seconds_total", "counter",
                     "Total processor time that the process has used, user and system, in seconds.",
                     SecondsOf(usage.ru_utime) + SecondsOf(usage.ru_stime));
  }
  AddProcessFigure(&out, "process_open_fds", "gauge", "Number of file descriptors that the process has open.",
                   OpenDescriptors());
  rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    AddProcessFigure(&out, "process_max_fds", "gauge",
                     "Largest number of file descriptors that the process may open.",
                     static_cast<double>(limit.rlim_cur));
  }
  const std::optional<ProcessStat> stat = ReadProcessStat();
  if (!stat.has_value()) return out;
  AddProcessFigure(&out, "process_virtual_memory_bytes", "gauge",
                   "Size of the process's virtual memory in bytes.", stat->virtual_bytes);
  AddProcessFigure(&out, "process_resident_memory_bytes", "gauge",
                   "Size of the process's memory that is resident in RAM, in bytes.",
                   stat->resident_pages * static_cast<double>(::sysconf(_SC_PAGESIZE)));
  if (const std::optional<double> boot = BootTime(); boot.has_value()) {
    AddProcessFigure(&out, "process_start_time_seconds", "gauge",
                     "Start time of the process in seconds since 1970.",
                     *boot + stat->start_ticks / static_cast<double>(::sysconf(_SC_CLK_TCK)));
  }
  return out;
}

}  // namespace tandem::cluster
