// SPDX-License-Identifier: Apache-2.0
#include "python/src/process.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <iterator>

#include "base/clock.h"
#include "python/src/errors.h"
#include "python/src/job_member.h"

namespace nb = nanobind;

namespace tandem::python {
namespace {

// A fork handler has no argument, so the number of forks cannot be a member of an object.
std::atomic<uint64_t> fork_generation{0};

}  // namespace

uint64_t ForkGeneration() {
  static const int installed = pthread_atfork(nullptr, nullptr, [] { fork_generation.fetch_add(1); });
  (void)installed;
  return fork_generation.load(std::memory_order_relaxed);
}

bool WaitInSlices(double timeout_s, absl::FunctionRef<bool(double seconds)> wait) {
  constexpr double kSlice = 0.1;
  Clock* const clock = Clock::Real();
  const absl::Time start = clock->Now();
  for (;;) {
    double slice = kSlice;
    if (timeout_s >= 0) {
      slice = std::min(slice, std::max(0.0, timeout_s - absl::ToDoubleSeconds(clock->Now() - start)));
    }
    bool over;
    {
      GilReleased release;
      over = wait(slice);
    }
    if (over) return true;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    RaiseIfError(JobMember::StatusOfProcess());
    if (timeout_s >= 0 && slice < kSlice) return false;
  }
}

bool HandleSignals() {
  const PyGILState_STATE state = UntilInterpreterEnds([] { return PyGILState_Ensure(); });
  const bool handled = PyErr_Occurred() == nullptr && PyErr_CheckSignals() == 0;
  PyGILState_Release(state);
  return handled;
}

void RaiseIfInterrupted() {
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
}

void ReleasedObjects::Add(std::vector<nb::object> objects) {
  absl::MutexLock lock(&mutex_);
  std::move(objects.begin(), objects.end(), std::back_inserter(objects_));
}

void ReleasedObjects::Clear() {
  std::vector<nb::object> objects;
  {
    absl::MutexLock lock(&mutex_);
    objects.swap(objects_);
  }
}

}  // namespace tandem::python
