#ifndef TANDEM_BASE_IPC_FUTEX_H_
#define TANDEM_BASE_IPC_FUTEX_H_

// Helpers for waiting on a word that another process writes.

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace tandem::ipc {

// Size of a cache line in bytes.
inline constexpr size_t kLine = 64;

// Pauses briefly in a loop that polls a word: leaves the core's resources to its other hardware thread.
inline void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Sleeps while *word is `expected`, at most `ns`. May return early for no reason. The word may be in memory
// shared by several processes.
void FutexWait(std::atomic<uint32_t>* word, uint32_t expected, int64_t ns);
// Wakes all threads that sleep on the word.
void FutexWake(std::atomic<uint32_t>* word);

// Returns the number of processors that this process may use (affinity and cgroup quota), at least 1.
int UsableProcessors();

}  // namespace tandem::ipc

#endif  // TANDEM_BASE_IPC_FUTEX_H_
