// SPDX-License-Identifier: Apache-2.0
#include "ps/server/table/worker_clocks.h"

namespace tandem::ps {

void WorkerClocks::Advance(uint32_t worker, uint64_t step) {
  Worker& state = workers_[worker];
  if (step < state.clock) {
    state.skipped.erase(step);
    return;
  }
  const uint64_t gap = std::min(step - state.clock, kMaxSkipped);
  for (uint64_t s = step - gap; s < step; ++s) state.skipped.insert(s);
  while (state.skipped.size() > kMaxSkipped) state.skipped.erase(state.skipped.begin());
  state.clock = step + 1;
}

}  // namespace tandem::ps
