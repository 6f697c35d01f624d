#ifndef TANDEM_COLLECTIVES_STORE_FENCED_STORE_H_
#define TANDEM_COLLECTIVES_STORE_FENCED_STORE_H_

// What a job's epoch means in its store: a process of an old epoch is told so by name, at once, also while it
// waits for peers who have gone on without it.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collectives/store/store.h"

namespace tandem::collectives {

// Says in `store` (key "job/epoch") that the job is at `epoch` now; never goes back. `who` ("worker/3") of an
// older epoch gets FailedPrecondition: "worker/3 belongs to epoch 4; the job is at epoch 5". A launcher calls
// it for a round that is over, with the next epoch, so that nobody waits in the old round's store any more.
absl::Status EnterEpoch(Store* store, int64_t epoch, absl::string_view who);

// A store whose waits end early: with EnterEpoch's error once the job has gone on, and with any error of
// `should_continue`. With `should_continue`, a store that has not answered one call is not asked again: it went
// with the process that the others miss, and several parts of a group would each wait for it. Thread-safe.
class FencedStore final : public Store {
 public:
  // epoch 0: no epoch is looked at. `should_continue` may be empty; it is asked several times a second while
  // something waits, from the waiting threads, and must not block.
  FencedStore(std::shared_ptr<Store> base, int64_t epoch, std::string who,
              std::function<absl::Status()> should_continue)
      : base_(std::move(base)), epoch_(epoch), who_(std::move(who)), should_continue_(std::move(should_continue)) {}

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
  // Calls `wait` with parts of `timeout` until it gives anything but DeadlineExceeded.
  template <typename Result>
  Result PollUntil(absl::Duration timeout, const std::function<Result(absl::Duration)>& wait);
  absl::Status Look();
  // Makes the call, unless it could only fail.
  template <typename Result>
  Result Once(const std::function<Result()>& call);

  const std::shared_ptr<Store> base_;
  const int64_t epoch_;
  const std::string who_;
  const std::function<absl::Status()> should_continue_;
  std::atomic<bool> gone_{false};  // did not answer
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_STORE_FENCED_STORE_H_
