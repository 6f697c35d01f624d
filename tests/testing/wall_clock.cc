// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/wall_clock.h"

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace tandem::testing {
namespace {

std::atomic<int64_t> step_ns{0};

}  // namespace

WallClockStep::WallClockStep(absl::Duration by) : by_(by) { step_ns += absl::ToInt64Nanoseconds(by_); }

WallClockStep::~WallClockStep() { step_ns -= absl::ToInt64Nanoseconds(by_); }

}  // namespace tandem::testing

extern "C" __attribute__((visibility("default"))) int clock_gettime(clockid_t id, timespec* time) noexcept {
  const long result = syscall(SYS_clock_gettime, id, time);
  if (result != 0 || (id != CLOCK_REALTIME && id != CLOCK_REALTIME_COARSE)) return static_cast<int>(result);
  constexpr int64_t kSecond = 1'000'000'000;
  const int64_t ns = time->tv_sec * kSecond + time->tv_nsec + tandem::testing::step_ns.load();
  time->tv_sec = ns / kSecond;
  time->tv_nsec = ns % kSecond;
  return 0;
}
