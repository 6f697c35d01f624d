// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLUSTER_STORE_FENCED_STORE_H_
#define TANDEM_CLUSTER_STORE_FENCED_STORE_H_

// Epochs of a job in its store. A process of an old epoch gets an error that names it, at once, even while it
// waits for peers that have gone on without it.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "cluster/store/forwarding_store.h"
#include "cluster/store/store.h"

namespace tandem::cluster {

// Sets the job's epoch in `store` (key "job/epoch") to `epoch`; the epoch never decreases. If the job is
// already at a later epoch, returns FailedPrecondition naming `who` ("worker/3"): "worker/3 belongs to epoch
// 4; the job is at epoch 5". When a round is over, a launcher calls it with the next epoch, so that no
// process keeps waiting in the old round's store.
absl::Status EnterEpoch(Store* store, int64_t epoch, absl::string_view who);

// A store whose waits end early: with EnterEpoch's error once the job is at a later epoch, and with any error
// of `should_continue`. Thread-safe.
//
// With `should_continue`, a store that did not respond to one call is not called again. Its server probably
// died with the process that the other ranks miss, and each step of connecting a group would wait for it once
// more.
class FencedStore final : public ForwardingStore {
 public:
  // `epoch` 0 disables the epoch check. `should_continue` may be empty. Waiting threads call it several times
  // a second; it must not block.
  FencedStore(std::shared_ptr<Store> base, int64_t epoch, std::string who,
              std::function<absl::Status()> should_continue)
      : ForwardingStore(base.get()),
        owned_(std::move(base)),
        epoch_(epoch),
        who_(std::move(who)),
        should_continue_(std::move(should_continue)) {}

 protected:
  // Makes the call, unless should_continue_ fails or the store did not respond before.
  absl::Status Forward(absl::FunctionRef<absl::Status()> call) override;
  // Makes calls with slices of `timeout` until one returns anything but DeadlineExceeded.
  absl::Status ForwardWait(absl::Duration timeout,
                           absl::FunctionRef<absl::Status(absl::Duration)> call) override;

 private:
  // Returns an error if the job is at a later epoch than epoch_.
  absl::Status CheckJobEpoch();

  const std::shared_ptr<Store> owned_;
  const int64_t epoch_;
  const std::string who_;
  const std::function<absl::Status()> should_continue_;
  std::atomic<bool> gone_{false};  // the store did not respond
};

}  // namespace tandem::cluster

#endif  // TANDEM_CLUSTER_STORE_FENCED_STORE_H_
