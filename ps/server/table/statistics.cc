// SPDX-License-Identifier: Apache-2.0
#include "ps/server/table/statistics.h"

#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include <climits>
#include <cstdio>
#include <string>

namespace tandem::ps {
namespace {

uint64_t Load(const std::atomic<uint64_t>& counter) { return counter.load(std::memory_order_relaxed); }

double Seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}

uint64_t ResidentBytes() {
  std::FILE* file = std::fopen("/proc/self/statm", "re");
  if (file == nullptr) return 0;
  unsigned long long size = 0, resident = 0;  // NOLINT(runtime/int): fscanf's
  const int fields = std::fscanf(file, "%llu %llu", &size, &resident);
  std::fclose(file);
  return fields == 2 ? resident * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE)) : 0;
}

uint64_t OpenSockets() {
  DIR* directory = ::opendir("/proc/self/fd");
  if (directory == nullptr) return 0;
  uint64_t sockets = 0;
  while (const dirent* entry = ::readdir(directory)) {
    char target[PATH_MAX];
    const ssize_t size = ::readlinkat(::dirfd(directory), entry->d_name, target, sizeof(target));
    if (size > 0 && std::string(target, static_cast<size_t>(size)).rfind("socket:", 0) == 0) ++sockets;
  }
  ::closedir(directory);
  return sockets;
}

}  // namespace

void LatencyCounter::Export(v1::LatencyHistogram* out) const {
  size_t last = kLatencyBins;  // most calls take far less than half an hour
  while (last > 0 && Load(counts_[last - 1]) == 0) --last;
  for (size_t bin = 0; bin < last; ++bin) out->add_counts(Load(counts_[bin]));
  out->set_sum_us(static_cast<double>(Load(sum_ns_)) * 1e-3);
}

void TableCounters::Export(size_t hottest, v1::TableStatistics* out) const {
  out->set_pulled_rows(Load(pulled_rows_));
  out->set_pushed_rows(Load(pushed_rows_));
  out->set_missing_rows(Load(missing_rows_));
  out->set_refused_pushes(Load(refused_pushes_));
  out->set_pulls(Load(pulls_));
  out->set_pushes(Load(pushes_));
  out->set_unchanged_rows(Load(unchanged_rows_));
  out->set_unasked_rows(Load(locally_served_rows_));
  out->set_pull_answer_bytes(Load(pull_response_bytes_));
  out->set_push_request_bytes(Load(push_request_bytes_));
  out->set_stale_pushes(Load(stale_pushes_));
  pull_latency_.Export(out->mutable_pull_latency());
  push_latency_.Export(out->mutable_push_latency());
  for (const std::atomic<uint64_t>& bin : histogram_) out->add_staleness_histogram(Load(bin));
  out->set_staleness_max(Load(staleness_max_));
  const uint64_t settled = Load(settled_pushes_);
  const double sum = static_cast<double>(Load(staleness_sum_));
  out->set_staleness_mean(settled == 0 ? 0.0 : sum / static_cast<double>(settled));
  for (const HotKeys::Hot& hot : hottest_.Top(hottest)) {
    v1::HotId* id = out->add_hottest();
    id->set_id(hot.id);
    id->set_pulls(hot.pulls);
  }
}

void ExportProcess(v1::ServerStatistics* out) {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  out->set_cpu_s(Seconds(usage.ru_utime) + Seconds(usage.ru_stime));
  out->set_rss_bytes(ResidentBytes());
  out->set_open_sockets(OpenSockets());
}

}  // namespace tandem::ps
