// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BASE_IPC_FUTEX_H_
#define TANDEM_BASE_IPC_FUTEX_H_

// Helpers for waiting on a word that another process writes, and the number of processors, which decides
// whether waiting threads poll or sleep. All functions are thread-safe.

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

// Blocks while *word is `expected`, for at most `ns` nanoseconds. Returns at once if *word differs or `ns` is
// not positive. May also return early (a signal, or no reason at all), so the caller must check the word and
// the time again. The word may be in memory shared by several processes.
void FutexWait(std::atomic<uint32_t>* word, uint32_t expected, int64_t ns);
// Wakes all threads of all processes that sleep on the word. The caller changes the word first. Never blocks.
void FutexWake(std::atomic<uint32_t>* word);

// Returns the number of processors that the calling thread may use, at least 1: those of its affinity mask,
// but no more than the CPU quota of the root of cgroup v2 as this process sees it (in a container, usually
// the container's), rounded up. Quotas of cgroup v1 and of nested cgroups are not seen. Reads the quota's
// file on every call.
int UsableProcessors();

}  // namespace tandem::ipc

#endif  // TANDEM_BASE_IPC_FUTEX_H_
