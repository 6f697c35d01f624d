// SPDX-License-Identifier: Apache-2.0
#include "ps/storage/fair_lock.h"

#include "base/ipc/futex.h"

namespace tandem::ps {
namespace {

// A writer tries the lock kLooks times, with kPauses pause instructions between two tries (about 40 us in
// all), before it sleeps. Readers hold the lock for at most about 30 us, and waking up takes longer than
// that.
constexpr int kLooks = 64;
constexpr int kPauses = 16;

}  // namespace

void FairLock::LockInTurn() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  writers_waiting_.fetch_add(1, std::memory_order_relaxed);
  // A reader that sees this count before turn_ is locked below may still enter first, once.
  {
    absl::MutexLock turn(&turn_);
    bool locked = false;
    for (int look = 0; look < kLooks && !locked; ++look) {
      locked = mutex_.TryLock();
      for (int i = 0; i < kPauses && !locked; ++i) ipc::Pause();
    }
    if (!locked) mutex_.Lock();
  }
  writers_waiting_.fetch_sub(1, std::memory_order_relaxed);
}

void FairLock::LetWriterGoFirst() { absl::MutexLock turn(&turn_); }

}  // namespace tandem::ps
