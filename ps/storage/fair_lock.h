// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_STORAGE_FAIR_LOCK_H_
#define TANDEM_PS_STORAGE_FAIR_LOCK_H_

// FairLock is a reader-writer lock under which neither readers nor writers starve. With absl::Mutex alone, a
// thread that reads without a pause takes the lock again before the writer that its release woke can run.
//
// A writer that finds the lock taken announces itself. Readers that arrive later let it go first, so it
// enters as soon as the readers inside have left. A reader that waited for one writer enters before the next
// writer. This is the phase-fair policy of Brandenburg and Anderson ("Reader-Writer Synchronization for
// Shared-Memory Multiprocessor Real-Time Systems", 2009), applied to threads that sleep instead of spinning.

#include <atomic>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace tandem::ps {

// Thread-safe. Not recursive, not even for two shared holds of one thread: a writer may be waiting between
// them. Threads that hold several locks must take them all in the same order.
class ABSL_LOCKABLE alignas(64) FairLock {
 public:
  // Scoped holds: Writer is exclusive, Reader is shared.
  class ABSL_SCOPED_LOCKABLE Writer {
   public:
    explicit Writer(FairLock* lock) ABSL_EXCLUSIVE_LOCK_FUNCTION(lock) : lock_(lock) { lock_->Lock(); }
    Writer(const Writer&) = delete;
    ~Writer() ABSL_UNLOCK_FUNCTION() { lock_->Unlock(); }

   private:
    FairLock* const lock_;
  };
  class ABSL_SCOPED_LOCKABLE Reader {
   public:
    explicit Reader(FairLock* lock) ABSL_SHARED_LOCK_FUNCTION(lock) : lock_(lock) { lock_->ReaderLock(); }
    Reader(const Reader&) = delete;
    ~Reader() ABSL_UNLOCK_FUNCTION() { lock_->ReaderUnlock(); }

   private:
    FairLock* const lock_;
  };

  // Blocks until the lock is held exclusively.
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() {
    if (!mutex_.TryLock()) LockInTurn();
  }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mutex_.Unlock(); }

  // Blocks until the lock is held shared.
  void ReaderLock() ABSL_SHARED_LOCK_FUNCTION() {
    if (writers_waiting_.load(std::memory_order_relaxed) != 0) LetWriterGoFirst();
    mutex_.ReaderLock();
  }
  // Takes the lock shared without blocking. Returns false if a writer holds it or waits for it, and
  // occasionally for no reason.
  bool ReaderTryLock() ABSL_SHARED_TRYLOCK_FUNCTION(true) {
    return writers_waiting_.load(std::memory_order_relaxed) == 0 && mutex_.ReaderTryLock();
  }
  void ReaderUnlock() ABSL_UNLOCK_FUNCTION() { mutex_.ReaderUnlock(); }

 private:
  void LockInTurn();
  void LetWriterGoFirst();

  absl::Mutex mutex_;
  absl::Mutex turn_;  // held by the writer that waits for mutex_; acquired before mutex_
  std::atomic<int> writers_waiting_{0};
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_STORAGE_FAIR_LOCK_H_
