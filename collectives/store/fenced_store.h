#ifndef TANDEM_COLLECTIVES_STORE_FENCED_STORE_H_
#define TANDEM_COLLECTIVES_STORE_FENCED_STORE_H_

// Epochs of a job in its store. A process of an old epoch gets an error that names it, at once, even while it
// waits for peers that have gone on without it.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collectives/store/store.h"

namespace tandem::collectives {

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
class FencedStore final : public Store {
 public:
  // `epoch` 0 disables the epoch check. `should_continue` may be empty. Waiting threads call it several times
  // a second; it must not block.
  FencedStore(std::shared_ptr<Store> base, int64_t epoch, std::string who,
              std::function<absl::Status()> should_continue)
      : base_(std::move(base)),
        epoch_(epoch),
        who_(std::move(who)),
        should_continue_(std::move(should_continue)) {}

  absl::Status Set(absl::string_view key, absl::string_view value) override;
  absl::StatusOr<std::string> Get(absl::string_view key, absl::Duration timeout) override;
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t delta) override;
  absl::StatusOr<std::string> CompareSet(absl::string_view key, absl::string_view expected,
                                         absl::string_view desired) override;
  absl::Status Wait(absl::Span<const std::string> keys, absl::Duration timeout) override;
  absl::StatusOr<bool> Check(absl::Span<const std::string> keys) override;
  absl::StatusOr<int64_t> Append(absl::string_view key, absl::string_view value) override;
  absl::StatusOr<std::vector<std::string>> MultiGet(absl::Span<const std::string> keys,
                                                    absl::Duration timeout) override;
  absl::Status MultiSet(absl::Span<const std::string> keys, absl::Span<const std::string> values) override;
  absl::StatusOr<bool> Delete(absl::string_view key) override;
  absl::StatusOr<std::vector<std::string>> List(absl::string_view prefix) override;
  absl::StatusOr<int64_t> NumKeys() override;
  absl::Status Push(absl::string_view queue, absl::string_view value) override;
  absl::StatusOr<std::string> Pop(absl::string_view queue, absl::Duration timeout) override;
  absl::StatusOr<int64_t> Length(absl::string_view queue) override;
  std::string address() const override { return base_->address(); }

 private:
  // Calls `wait` with slices of `timeout` until it returns anything but DeadlineExceeded.
  template <typename Result>
  Result PollUntil(absl::Duration timeout, const std::function<Result(absl::Duration)>& wait);
  // Compares epoch_ with the job's epoch.
  absl::Status Look();
  // Makes the call, unless should_continue_ fails or the store did not respond before.
  template <typename Result>
  Result Once(const std::function<Result()>& call);

  const std::shared_ptr<Store> base_;
  const int64_t epoch_;
  const std::string who_;
  const std::function<absl::Status()> should_continue_;
  std::atomic<bool> gone_{false};  // the store did not respond
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_STORE_FENCED_STORE_H_
