// SPDX-License-Identifier: Apache-2.0
#include "base/trace/trace.h"

#include <pthread.h>

#include <string>

#include "base/trace/recorder.h"

namespace tandem::trace {
namespace internal {

std::atomic<Recorder*> active{nullptr};

uint64_t Now() {
  const Recorder* const recorder = active.load(std::memory_order_acquire);
  if (recorder == nullptr) return 0;
  const uint64_t now = recorder->clock_.Now();
  return now == 0 ? 1 : now;
}

void Put(const Kind& kind, uint64_t begin, const Flow& flow, int64_t a, int64_t b, int64_t c) {
  Recorder* const recorder = active.load(std::memory_order_acquire);
  if (recorder == nullptr) return;
  recorder->Put({&kind, begin, recorder->clock_.Now(), flow.id, static_cast<uint64_t>(flow.end), {a, b, c}});
}

}  // namespace internal

void NameThread(const char* name) {
  ::pthread_setname_np(::pthread_self(), std::string(name).substr(0, 15).c_str());
}

}  // namespace tandem::trace
