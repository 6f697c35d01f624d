// SPDX-License-Identifier: Apache-2.0
#include "cluster/membership/beat.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <new>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/time/clock.h"
#include "base/status.h"

namespace tandem::cluster {
namespace {

// Another version of Tandem in the launcher's place has another number here.
constexpr uint64_t kMagic = 0x54616e6442656174;  // "TandBeat"

// The contents of the memory file.
struct Page {
  uint64_t magic;
  int64_t period_ns;
  std::atomic<uint64_t> count;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

Page* PageOf(const ipc::MemoryFile& memory) { return reinterpret_cast<Page*>(memory.data()); }

// The record that the lock covers: the whole file.
struct flock WholeFile() {
  struct flock record = {};
  record.l_type = F_WRLCK;
  record.l_whence = SEEK_SET;
  return record;
}

bool TakeLock(int fd) {
  struct flock record = WholeFile();
  return ::fcntl(fd, F_SETLK, &record) == 0;
}

// Body of the thread. It neither allocates memory nor takes a lock of this process.
[[noreturn]] void Beat(int fd, Page* page) {
  const absl::Duration period = absl::Nanoseconds(page->period_ns);
  bool locked = TakeLock(fd);
  for (;; absl::SleepFor(period)) {
    // Another process of the same program may have the page and end before this one.
    if (!locked) locked = TakeLock(fd);
    if (locked) page->count.fetch_add(1, std::memory_order_relaxed);
  }
}

void Start(const char* descriptor) {
  int fd = -1;
  if (!absl::SimpleAtoi(descriptor, &fd) || fd < 0) return;
  // A program may have closed the descriptor, and something else may have its number now. Map closes the copy
  // before the lock is taken: closing any descriptor of a file releases the process's locks on it.
  auto memory = ipc::MemoryFile::Map(ipc::Descriptor(::fcntl(fd, F_DUPFD_CLOEXEC, 3)), sizeof(Page));
  if (!memory.ok()) return;
  ipc::MemoryFile* const mapped = memory->release();  // for the rest of the process's life, as the thread
  Page* const page = PageOf(*mapped);
  if (page->magic != kMagic || page->period_ns <= 0) {
    delete mapped;
    return;
  }
  // The leak checker looks for it here. An atomic store is not optimised away although nothing reads it.
  static std::atomic<ipc::MemoryFile*> kept = nullptr;
  kept = mapped;
  // Programs that this process executes from now on must not beat in its place.
  ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  sigset_t all, before;  // signals are for the program's own threads
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread([fd, page] {
    ::pthread_setname_np(::pthread_self(), "tandem-beat");
    Beat(fd, page);
  }).detach();
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace

void StartBeat() {
  // One beat per process, whatever joins the job in it. No lock: a process may be forked at any moment.
  static std::atomic<bool> started = false;
  const char* const descriptor = std::getenv(kBeatVariable);
  if (descriptor != nullptr && !started.exchange(true)) Start(descriptor);
}

absl::StatusOr<std::unique_ptr<BeatPage>> BeatPage::Create(absl::Duration period) {
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<ipc::MemoryFile> memory,
                          ipc::MemoryFile::Create("tandem-beat", sizeof(Page)));
  Page* const page = new (memory->data()) Page;
  page->magic = kMagic;
  page->period_ns = absl::ToInt64Nanoseconds(period);
  page->count = 0;
  return std::unique_ptr<BeatPage>(new BeatPage(std::move(memory)));
}

uint64_t BeatPage::count() const { return PageOf(*memory_)->count.load(std::memory_order_relaxed); }

std::optional<pid_t> BeatPage::Holder() const {
  struct flock record = WholeFile();
  if (::fcntl(descriptor(), F_GETLK, &record) != 0 || record.l_type == F_UNLCK) return std::nullopt;
  return record.l_pid;
}

}  // namespace tandem::cluster
