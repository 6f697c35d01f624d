// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BASE_LONG_WAIT_H_
#define TANDEM_BASE_LONG_WAIT_H_

// Lets the caller of a blocking function act while the function waits, for example to notice Ctrl-C.

#include "absl/functional/function_ref.h"

namespace tandem {

// While it exists, waits of this thread that have lasted for about 100 ms call `hook`, and again about every
// 100 ms. Only functions that say so call it. `hook` runs in this thread and must outlive the object. Objects
// of one thread may be nested: the innermost hook is called.
class ScopedLongWaitHook {
 public:
  explicit ScopedLongWaitHook(absl::FunctionRef<void()> hook);
  ~ScopedLongWaitHook();
  ScopedLongWaitHook(const ScopedLongWaitHook&) = delete;
  ScopedLongWaitHook& operator=(const ScopedLongWaitHook&) = delete;

 private:
  const absl::FunctionRef<void()> hook_;
  const ScopedLongWaitHook* const outer_;
  friend void CallLongWaitHook();
};

// Calls this thread's hook if there is one. The caller holds no locks.
void CallLongWaitHook();

}  // namespace tandem

#endif  // TANDEM_BASE_LONG_WAIT_H_
