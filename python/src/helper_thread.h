// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PYTHON_SRC_HELPER_THREAD_H_
#define TANDEM_PYTHON_SRC_HELPER_THREAD_H_

#include <memory>
#include <optional>
#include <thread>
#include <type_traits>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/timed_wait.h"
#include "python/src/process.h"

namespace tandem::python {

// Runs `function` on a thread of its own and returns its result. Signals are handled meanwhile: if a handler
// raises, this function throws, and `function` continues, so it must own what it uses. Requires the GIL.
template <typename Function>
auto OnHelperThread(Function function) {
  struct State {
    absl::Mutex mutex;
    bool finished ABSL_GUARDED_BY(mutex) = false;
    std::optional<std::invoke_result_t<Function>> result ABSL_GUARDED_BY(mutex);
  };
  auto state = std::make_shared<State>();
  std::thread([state, function = std::move(function)]() mutable {
    auto result = function();
    absl::MutexLock lock(&state->mutex);
    state->result.emplace(std::move(result));
    state->finished = true;
  }).detach();
  WaitInSlices(-1, [&](double seconds) {
    absl::MutexLock lock(&state->mutex);
    return AwaitFor(&state->mutex, absl::Condition(&state->finished), absl::Seconds(seconds));
  });
  absl::MutexLock lock(&state->mutex);
  return *std::move(state->result);
}

}  // namespace tandem::python

#endif  // TANDEM_PYTHON_SRC_HELPER_THREAD_H_
