// SPDX-License-Identifier: Apache-2.0
#include "base/ipc/futex.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <limits>

namespace tandem::ipc {
namespace {

static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free,
              "words between processes must not hide a lock");

// Returns the number of processors that the cgroup's quota allows, rounded up, or a large number without a
// limit.
int QuotaProcessors() {
  FILE* file = std::fopen("/sys/fs/cgroup/cpu.max", "re");
  if (file == nullptr) return std::numeric_limits<int>::max();
  long long quota = 0, period = 0;
  const int fields = std::fscanf(file, "%lld %lld", &quota, &period);
  std::fclose(file);
  if (fields != 2 || quota <= 0 || period <= 0) return std::numeric_limits<int>::max();
  return static_cast<int>(std::min<long long>((quota + period - 1) / period, 1 << 20));
}

}  // namespace

void FutexWait(std::atomic<uint32_t>* word, uint32_t expected, int64_t ns) {
  const timespec timeout = {static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
  syscall(SYS_futex, word, FUTEX_WAIT, expected, &timeout, nullptr, 0);
}

void FutexWake(std::atomic<uint32_t>* word) {
  syscall(SYS_futex, word, FUTEX_WAKE, std::numeric_limits<int>::max(), nullptr, nullptr, 0);
}

int UsableProcessors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  const int allowed = sched_getaffinity(0, sizeof(set), &set) == 0
                          ? CPU_COUNT(&set)
                          : static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  return std::max(1, std::min(allowed, QuotaProcessors()));
}

}  // namespace tandem::ipc
