// SPDX-License-Identifier: Apache-2.0
#include "base/timed_wait.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <limits>
#include <map>
#include <mutex>
#include <thread>

#include "base/clock.h"
#include "base/ticks.h"

namespace tandem {
namespace {

// How soon the thread tries again when a waiter's mutex was held at the deadline.
constexpr int64_t kTryAgainNs = 500'000;
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

// Wakes waits at their deadlines. Never destroyed, because threads may wait until the process ends.
class Alarms {
 public:
  // A wait in progress. Lives on the stack of the thread that waits.
  struct Alarm {
    absl::Mutex* mutex;
    absl::CondVar* condition_variable;  // null: the waiter's condition looks at `due`
    bool due = false;                   // guarded by *mutex
    std::multimap<int64_t, Alarm*>::iterator place;
  };

  static Alarms* Get() {
    Alarms* alarms = current_.load(std::memory_order_acquire);
    return alarms != nullptr ? alarms : Make();
  }

  // Requires alarm->mutex to be held.
  void Add(Alarm* alarm, int64_t deadline_ns) {
    const std::lock_guard<std::mutex> lock(mutex_);
    alarm->place = alarms_.emplace(deadline_ns, alarm);
    if (deadline_ns >= sleeps_until_ns_) return;
    sleeps_until_ns_ = deadline_ns;
    earlier_.notify_one();
  }

  // Requires alarm->mutex to be held. The thread touches no alarm that is not in the map.
  void Remove(Alarm* alarm) {
    const std::lock_guard<std::mutex> lock(mutex_);
    alarms_.erase(alarm->place);
  }

 private:
  static Alarms* Make() {
    static absl::Mutex making(absl::kConstInit);
    absl::MutexLock lock(&making);
    if (Alarms* made = current_.load(std::memory_order_acquire)) return made;
    // The thread does not exist in a forked process. The old object is kept, because its lock may be held.
    static const int at_fork = pthread_atfork(
        nullptr, nullptr, [] { before_fork_ = current_.exchange(nullptr, std::memory_order_acq_rel); });
    (void)at_fork;
    auto* alarms = new Alarms;
    // Signals are for the program's own threads.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    std::thread([alarms] { alarms->Run(); }).detach();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    current_.store(alarms, std::memory_order_release);
    return alarms;
  }

  [[noreturn]] void Run() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      const int64_t next_ns = RingDue(SteadyNanoseconds());
      sleeps_until_ns_ = next_ns;
      if (next_ns == kNever) {
        earlier_.wait(lock);
      } else {
        earlier_.wait_until(lock, std::chrono::steady_clock::time_point(std::chrono::nanoseconds(next_ns)));
      }
    }
  }

  // Wakes the waits whose deadline has passed. Returns when to look again. Requires mutex_.
  int64_t RingDue(int64_t now_ns) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    int64_t again_ns = kNever;
    for (const auto& [deadline_ns, alarm] : alarms_) {
      if (deadline_ns > now_ns) return std::min(again_ns, deadline_ns);
      // Add() and Remove() are called with the waiter's mutex held, so waiting for it here could deadlock.
      if (!alarm->mutex->TryLock()) {
        again_ns = now_ns + kTryAgainNs;
        continue;
      }
      const bool first = !alarm->due;
      alarm->due = true;
      if (first && alarm->condition_variable != nullptr) alarm->condition_variable->SignalAll();
      alarm->mutex->Unlock();  // the waiter runs now, and removes its alarm
    }
    return again_ns;
  }

  static std::atomic<Alarms*> current_;
  static Alarms* before_fork_;

  // Standard ones, because only their timed waits use the monotonic clock.
  std::mutex mutex_;
  std::condition_variable earlier_;
  std::multimap<int64_t, Alarm*> alarms_;  // by deadline
  int64_t sleeps_until_ns_ = kNever;
};

std::atomic<Alarms*> Alarms::current_{nullptr};
Alarms* Alarms::before_fork_ = nullptr;

struct ConditionOrDue {
  const absl::Condition* condition;
  const bool* due;
  static bool Holds(ConditionOrDue* self) { return *self->due || self->condition->Eval(); }
};

}  // namespace

bool AwaitUntil(absl::Mutex* mutex, const absl::Condition& condition, absl::Time deadline) {
  if (deadline == absl::InfiniteFuture()) {
    mutex->Await(condition);
    return true;
  }
  if (condition.Eval()) return true;
  const int64_t deadline_ns = ToSteadyNanoseconds(deadline);
  // Absl's waits release the mutex even when the time is up; so does this one, for pollers with a timeout of
  // 0.
  if (deadline_ns <= SteadyNanoseconds()) {
    mutex->Unlock();
    mutex->Lock();
    return condition.Eval();
  }
  Alarms* const alarms = Alarms::Get();
  Alarms::Alarm alarm = {mutex, nullptr};
  ConditionOrDue either = {&condition, &alarm.due};
  alarms->Add(&alarm, deadline_ns);
  mutex->Await(absl::Condition(&ConditionOrDue::Holds, &either));
  alarms->Remove(&alarm);
  return condition.Eval();
}

bool AwaitFor(absl::Mutex* mutex, const absl::Condition& condition, absl::Duration timeout) {
  return AwaitUntil(mutex, condition, MonotonicNow() + timeout);
}

bool WaitUntil(absl::CondVar* condition_variable, absl::Mutex* mutex, absl::Time deadline) {
  if (deadline == absl::InfiniteFuture()) {
    condition_variable->Wait(mutex);
    return false;
  }
  const int64_t deadline_ns = ToSteadyNanoseconds(deadline);
  if (deadline_ns <= SteadyNanoseconds()) {
    mutex->Unlock();
    mutex->Lock();
    return true;
  }
  Alarms* const alarms = Alarms::Get();
  Alarms::Alarm alarm = {mutex, condition_variable};
  alarms->Add(&alarm, deadline_ns);
  condition_variable->Wait(mutex);
  alarms->Remove(&alarm);
  return alarm.due;
}

}  // namespace tandem
