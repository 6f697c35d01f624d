#ifndef TANDEM_BASE_IPC_FUTEX_H_
#define TANDEM_BASE_IPC_FUTEX_H_

// The small parts of waiting for a word that another process writes.

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace tandem::ipc {

inline constexpr size_t kLine = 64;  // bytes of a cache line

// Between two looks at a word: leaves the core's resources to its sibling.
inline void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Sleeps while *word is `expected`, at most `ns`; may return early for no reason. Shared: the word may lie in
// memory of several processes.
void FutexWait(std::atomic<uint32_t>* word, uint32_t expected, int64_t ns);
// Wakes all who sleep on the word.
void FutexWake(std::atomic<uint32_t>* word);

// Processors that this process may use (affinity and cgroup quota), at least 1.
int UsableProcessors();

}  // namespace tandem::ipc

#endif  // TANDEM_BASE_IPC_FUTEX_H_
