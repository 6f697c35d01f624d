// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_RPC_REMOTE_AWAIT_MEMBERS_H_
#define TANDEM_TESTS_RPC_REMOTE_AWAIT_MEMBERS_H_

#include <functional>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "rpc/remote/directory.h"

namespace tandem::rpc::remote::testing {

// Waits until `holds` returns true for the directory's members. Returns false after `timeout`.
inline bool AwaitMembers(Directory& directory, const std::function<bool(const Directory::Members&)>& holds,
                         absl::Duration timeout = absl::Seconds(60)) {
  absl::Mutex mutex;
  bool held = false;
  const uint64_t watch = directory.Watch([&](const Directory::Members& members) {
    absl::MutexLock lock(&mutex);
    held = held || holds(members);
  });
  bool in_time;
  {
    absl::MutexLock lock(&mutex);
    in_time = mutex.AwaitWithTimeout(absl::Condition(&held), timeout);
  }
  directory.Unwatch(watch);
  return in_time;
}

}  // namespace tandem::rpc::remote::testing

#endif  // TANDEM_TESTS_RPC_REMOTE_AWAIT_MEMBERS_H_
