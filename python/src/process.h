// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PYTHON_SRC_PROCESS_H_
#define TANDEM_PYTHON_SRC_PROCESS_H_

// Keeps Python's rules in C++ waits: a forked child must not use its parent's threads, Ctrl-C ends a wait,
// and objects are released only with the GIL.

#include <cxxabi.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "nanobind/nanobind.h"

namespace tandem::python {

// Returns a number that differs between a process and its forked children. Installs its fork handler at the
// first call. Thread-safe; does not block.
uint64_t ForkGeneration();

// Returns a shared pointer to `object` that is destroyed as usual in the process that made it. In a forked
// child it leaks, because the threads that its destructor would join do not exist there.
template <typename T>
std::shared_ptr<T> LeakAfterFork(std::unique_ptr<T> object) {
  return std::shared_ptr<T>(object.release(), [made = ForkGeneration()](T* pointer) {
    if (ForkGeneration() == made) delete pointer;
  });
}

// Runs a function that may take the GIL, on any thread. CPython (before 3.14) ends a thread that asks for the
// GIL when the interpreter ends by pthread_exit, which unwinds the stack: through noexcept functions and
// catch (...) that would end the process. The thread stands still instead.
template <typename Body>
auto UntilInterpreterEnds(Body body) {
  try {
    return body();
  } catch (abi::__forced_unwind&) {
    for (;;) ::pause();
  }
}

// Releases the GIL in its scope. Once the interpreter ends, the destructor never returns.
class GilReleased {
 public:
  GilReleased() : state_(PyEval_SaveThread()) {}
  ~GilReleased() {
    UntilInterpreterEnds([this] { PyEval_RestoreThread(state_); });
  }
  GilReleased(const GilReleased&) = delete;
  GilReleased& operator=(const GilReleased&) = delete;

 private:
  PyThreadState* const state_;
};

// Calls `wait(seconds)` until it returns true, without the GIL, in slices of at most 100 ms; checks for
// signals between them. Returns false after `timeout_s` seconds (negative: no limit). Requires the GIL.
// Throws nb::python_error if a signal handler has raised, for example KeyboardInterrupt, and UnavailableError
// once the job of this process has failed elsewhere.
bool WaitInSlices(double timeout_s, absl::FunctionRef<bool(double seconds)> wait);

// Handles signals, on a thread that has released the GIL. Returns false if a handler has raised; the error is
// then the thread's, and RaiseIfInterrupted throws it.
bool HandleSignals();
// Throws nb::python_error if this thread has an error that HandleSignals has left. Requires the GIL.
void RaiseIfInterrupted();

// Python objects that threads without the GIL no longer need. Thread-safe.
class ReleasedObjects {
 public:
  // Keeps the references until Clear. Needs no GIL.
  void Add(std::vector<nanobind::object> objects);
  // Drops all references. Requires the GIL.
  void Clear();

 private:
  absl::Mutex mutex_;
  std::vector<nanobind::object> objects_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::python

#endif  // TANDEM_PYTHON_SRC_PROCESS_H_
