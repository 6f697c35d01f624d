// SPDX-License-Identifier: Apache-2.0
// Used in ThreadSanitizer builds only. Debian's absl is not instrumented, so TSAN would not know that
// absl::Mutex orders accesses, and would report every guarded access as a race. These definitions replace the
// library's, also for gRPC's calls. They do what the library does, and tell TSAN about it.

#include <dlfcn.h>

#include <atomic>
#include <cstdint>
#include <string>

#include "absl/base/config.h"
#include "absl/status/status.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"

extern "C" {
void __tsan_acquire(void* address);
void __tsan_release(void* address);
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
}

namespace {

#define TANDEM_TEXT_INNER_(x) #x
#define TANDEM_TEXT_(x) TANDEM_TEXT_INNER_(x)

// Returns the library's own function. `suffix` is its mangled name without the prefix "_ZN4absl<inline
// namespace>".
void* Library(const char* suffix) {
  const std::string space = TANDEM_TEXT_(ABSL_OPTION_INLINE_NAMESPACE_NAME);
  return dlsym(RTLD_NEXT, ("_ZN4absl" + std::to_string(space.size()) + space + suffix).c_str());
}
void* ConstLibrary(const char* suffix) {
  const std::string space = TANDEM_TEXT_(ABSL_OPTION_INLINE_NAMESPACE_NAME);
  return dlsym(RTLD_NEXT, ("_ZNK4absl" + std::to_string(space.size()) + space + suffix).c_str());
}

// The library evaluates the conditions of waiting threads in any thread that holds the mutex, and TSAN does
// not see that. Reads in such conditions are guarded, but TSAN would report them.
class LibraryCall {
 public:
  LibraryCall() { AnnotateIgnoreReadsBegin(__FILE__, __LINE__); }
  ~LibraryCall() { AnnotateIgnoreReadsEnd(__FILE__, __LINE__); }
};

template <typename Result, typename... Args>
Result Forward(void* function, Args... args) {
  LibraryCall call;
  return reinterpret_cast<Result (*)(Args...)>(function)(args...);
}

}  // namespace

namespace absl {
ABSL_NAMESPACE_BEGIN

#define TANDEM_REAL_(suffix)                   \
  static void* const real = ::Library(suffix); \
  static_assert(true, "")

void Mutex::Lock() {
  TANDEM_REAL_("5Mutex4LockEv");
  Forward<void>(real, this);
  __tsan_acquire(this);
}
void Mutex::Unlock() {
  TANDEM_REAL_("5Mutex6UnlockEv");
  __tsan_release(this);
  Forward<void>(real, this);
}
bool Mutex::TryLock() {
  TANDEM_REAL_("5Mutex7TryLockEv");
  const bool locked = Forward<bool>(real, this);
  if (locked) __tsan_acquire(this);
  return locked;
}
void Mutex::ReaderLock() {
  TANDEM_REAL_("5Mutex10ReaderLockEv");
  Forward<void>(real, this);
  __tsan_acquire(this);
}
void Mutex::ReaderUnlock() {
  TANDEM_REAL_("5Mutex12ReaderUnlockEv");
  __tsan_release(this);
  Forward<void>(real, this);
}
bool Mutex::ReaderTryLock() {
  TANDEM_REAL_("5Mutex13ReaderTryLockEv");
  const bool locked = Forward<bool>(real, this);
  if (locked) __tsan_acquire(this);
  return locked;
}
void Mutex::Await(const Condition& condition) {
  TANDEM_REAL_("5Mutex5AwaitERKNS0_9ConditionE");
  __tsan_release(this);
  Forward<void>(real, this, &condition);
  __tsan_acquire(this);
}
bool Mutex::AwaitWithTimeout(const Condition& condition, absl::Duration timeout) {
  return AwaitWithDeadline(condition, absl::Now() + timeout);
}
bool Mutex::AwaitWithDeadline(const Condition& condition, absl::Time deadline) {
  TANDEM_REAL_("5Mutex17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE");
  __tsan_release(this);
  const bool held = Forward<bool>(real, this, &condition, deadline);
  __tsan_acquire(this);
  return held;
}
void Mutex::LockWhen(const Condition& condition) {
  TANDEM_REAL_("5Mutex8LockWhenERKNS0_9ConditionE");
  Forward<void>(real, this, &condition);
  __tsan_acquire(this);
}
bool Mutex::LockWhenWithTimeout(const Condition& condition, absl::Duration timeout) {
  return LockWhenWithDeadline(condition, absl::Now() + timeout);
}
bool Mutex::LockWhenWithDeadline(const Condition& condition, absl::Time deadline) {
  TANDEM_REAL_("5Mutex20LockWhenWithDeadlineERKNS0_9ConditionENS0_4TimeE");
  const bool held = Forward<bool>(real, this, &condition, deadline);
  __tsan_acquire(this);
  return held;
}
void Mutex::ReaderLockWhen(const Condition& condition) {
  TANDEM_REAL_("5Mutex14ReaderLockWhenERKNS0_9ConditionE");
  Forward<void>(real, this, &condition);
  __tsan_acquire(this);
}

void CondVar::Wait(Mutex* mutex) {
  TANDEM_REAL_("7CondVar4WaitEPNS0_5MutexE");
  __tsan_release(mutex);
  Forward<void>(real, this, mutex);
  __tsan_acquire(mutex);
}
bool CondVar::WaitWithTimeout(Mutex* mutex, absl::Duration timeout) {
  return WaitWithDeadline(mutex, absl::Now() + timeout);
}
bool CondVar::WaitWithDeadline(Mutex* mutex, absl::Time deadline) {
  TANDEM_REAL_("7CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE");
  __tsan_release(mutex);
  const bool timed_out = Forward<bool>(real, this, mutex, deadline);
  __tsan_acquire(mutex);
  return timed_out;
}

void Notification::Notify() {
  TANDEM_REAL_("12Notification6NotifyEv");
  __tsan_release(this);
  // HasBeenNotified() is inline: it loads the flag after the mutex, and TSAN does not see the library's
  // store.
  __tsan_release(reinterpret_cast<char*>(this) + sizeof(Mutex));
  Forward<void>(real, this);
}
void Notification::WaitForNotification() const {
  static void* const real = ConstLibrary("12Notification19WaitForNotificationEv");
  Forward<void>(real, this);
  __tsan_acquire(const_cast<Notification*>(this));
}
bool Notification::WaitForNotificationWithTimeout(absl::Duration timeout) const {
  return WaitForNotificationWithDeadline(absl::Now() + timeout);
}
bool Notification::WaitForNotificationWithDeadline(absl::Time deadline) const {
  static void* const real = ConstLibrary("12Notification31WaitForNotificationWithDeadlineENS0_4TimeE");
  const bool notified = Forward<bool>(real, this, deadline);
  if (notified) __tsan_acquire(const_cast<Notification*>(this));
  return notified;
}

bool BlockingCounter::DecrementCount() {
  TANDEM_REAL_("15BlockingCounter14DecrementCountEv");
  __tsan_release(this);
  return Forward<bool>(real, this);
}
void BlockingCounter::Wait() {
  TANDEM_REAL_("15BlockingCounter4WaitEv");
  Forward<void>(real, this);
  __tsan_acquire(this);
}

// Not forwarded: the reference count itself orders the last release after the others.
void Status::UnrefNonInlined(uintptr_t rep) {
  status_internal::StatusRep* const shared = RepToPointer(rep);
  if (shared->ref.fetch_sub(1, std::memory_order_acq_rel) == 1) delete shared;
}

ABSL_NAMESPACE_END
}  // namespace absl
