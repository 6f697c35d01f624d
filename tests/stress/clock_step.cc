// SPDX-License-Identifier: Apache-2.0
// A library to preload into a program: it steps the program's wall clock, and leaves the machine's alone.
//
//   LD_PRELOAD=libstress_clock_step.so TEST_CLOCK_STEP="MILLISECONDS SECONDS" tandem ...
//
// MILLISECONDS after the first look at the clock it jumps by SECONDS, which may be negative.

#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>

#include <cstdio>
#include <cstdlib>

namespace {

using ClockGettime = int (*)(clockid_t, timespec*);

ClockGettime System() {
  static const auto function = reinterpret_cast<ClockGettime>(dlsym(RTLD_NEXT, "clock_gettime"));
  return function;
}

struct Step {
  long long after_ms = 0, seconds = 0;
  timespec begin = {};
  Step() {
    if (const char* text = std::getenv("TEST_CLOCK_STEP"))
      std::sscanf(text, "%lld %lld", &after_ms, &seconds);
    System()(CLOCK_MONOTONIC, &begin);
  }
  long long Now() const {
    timespec now;
    System()(CLOCK_MONOTONIC, &now);
    const long long ms = (now.tv_sec - begin.tv_sec) * 1000LL + (now.tv_nsec - begin.tv_nsec) / 1000000;
    return ms >= after_ms ? seconds : 0;
  }
};

long long Shift() {
  static const Step step;
  return step.Now();
}

}  // namespace

extern "C" int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const int result = System()(clock, time);
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) time->tv_sec += Shift();
  return result;
}

extern "C" int gettimeofday(timeval* time, void*) noexcept {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  time->tv_sec = now.tv_sec;
  time->tv_usec = now.tv_nsec / 1000;
  return 0;
}

extern "C" time_t time(time_t* out) noexcept {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (out != nullptr) *out = now.tv_sec;
  return now.tv_sec;
}
