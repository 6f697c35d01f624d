// SPDX-License-Identifier: Apache-2.0
#include "collectives/backends/shm/copy.h"

#include "base/ticks.h"
#include "collectives/backends/shm/wait.h"

namespace tandem::collectives::shm {
namespace {

// Bytes that are filled to measure: enough to show the speed, few enough to cost nothing. The copy itself is
// not timed: its source may come from memory, which tells nothing about the other core.
constexpr size_t kMeasured = 4096;
constexpr int64_t kSlowNs = 600;   // for kMeasured: 130 to 300 within one cache, 800 and more across caches
constexpr int kMeasureEvery = 32;  // writes
constexpr int kSlowInARow = 3;     // so that losing the processor in the middle does not count
constexpr int kStreamFor = 256;    // writes

}  // namespace

void LaneWriter::Write(void* to, const void* from, size_t bytes) {
  if (stream_for_ == 0 && bytes >= kMeasured && writes_-- <= 0) Measure(to);
  Copy(to, from, bytes, hint());
  if (stream_for_ > 0) {
    fence_ = true;
    --stream_for_;
  }
}

void LaneWriter::Measure(void* to) {
  const int64_t begin = SteadyNanoseconds();
  std::memset(to, 0, kMeasured);
  if (SteadyNanoseconds() - begin < kSlowNs) {
    slow_ = 0;
    writes_ = kMeasureEvery;
  } else if (++slow_ >= kSlowInARow) {
    slow_ = kSlowInARow - 1;  // one slow measurement is enough the next time
    stream_for_ = kStreamFor;
    writes_ = 0;
  } else {
    writes_ = 0;  // the next write measures again
  }
}

}  // namespace tandem::collectives::shm
