// SPDX-License-Identifier: Apache-2.0
#include "base/long_wait.h"

namespace tandem {
namespace {

thread_local const ScopedLongWaitHook* innermost = nullptr;

}  // namespace

ScopedLongWaitHook::ScopedLongWaitHook(absl::FunctionRef<void()> hook) : hook_(hook), outer_(innermost) {
  innermost = this;
}

ScopedLongWaitHook::~ScopedLongWaitHook() { innermost = outer_; }

void CallLongWaitHook() {
  if (innermost != nullptr) innermost->hook_();
}

}  // namespace tandem
