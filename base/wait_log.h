// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BASE_WAIT_LOG_H_
#define TANDEM_BASE_WAIT_LOG_H_

// Says in the log what a process has been waiting for, so that a job that stands still explains itself.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/logging.h"

namespace tandem {

// How often a wait is logged.
inline constexpr absl::Duration kLogWaitsEvery = absl::Seconds(30);

// Returns "has waited for the other learners for 1m30s".
std::string WaitText(const std::string& what, absl::Duration waited);

// Logs each wait that lasts, once every period, from a thread of its own, so that it also sees calls that
// block. Thread-safe.
//
//   const WaitLog::Wait wait = waits.Begin("the other learners");
//   group->Barrier();
class WaitLog {
 public:
  // A wait, which lasts as long as the object. The WaitLog must outlive it.
  class [[nodiscard]] Wait {
   public:
    Wait(Wait&& other) noexcept : log_(std::exchange(other.log_, nullptr)), id_(other.id_) {}
    Wait& operator=(Wait&&) = delete;
    ~Wait() {
      if (log_ != nullptr) log_->End(id_);
    }

   private:
    friend class WaitLog;
    Wait(WaitLog* log, uint64_t id) : log_(log), id_(id) {}
    WaitLog* log_;  // nullptr: moved from, or not logged
    uint64_t id_;
  };

  // `log` gets the lines, on the thread of this object.
  explicit WaitLog(
      absl::Duration every = kLogWaitsEvery,
      std::function<void(const std::string&)> log = [](const std::string& line) { LogWarning(line); });
  ~WaitLog();

  // Begins a wait for `what`, as it follows "has waited for".
  Wait Begin(std::string what);
  // Does so if there is a log.
  static Wait Begin(WaitLog* log, std::string what) {
    return log == nullptr ? Wait(nullptr, 0) : log->Begin(std::move(what));
  }
  // Returns the wait that has lasted longest, as "the other learners for 3s", or "" if there is none.
  std::string Longest() const;

 private:
  struct Waiting {
    std::string what;
    absl::Time since, next;  // next: when it is logged
  };

  void End(uint64_t id);
  void Run();

  const absl::Duration every_;
  const std::function<void(const std::string&)> log_;
  mutable absl::Mutex mutex_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<uint64_t, Waiting> waits_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace tandem

#endif  // TANDEM_BASE_WAIT_LOG_H_
