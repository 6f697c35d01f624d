// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WEIGHTS_CLIENT_CALL_WINDOW_H_
#define TANDEM_WEIGHTS_CLIENT_CALL_WINDOW_H_

#include <atomic>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/bytes.h"
#include "rpc/channel.h"

namespace tandem::weights {

// Keeps several idempotent calls of one channel under way. One thread uses it; it must not be an RPC thread.
class CallWindow {
 public:
  // Gets the response of a call, on any thread, and returns whether it is as expected. Must not block.
  using OnResponse = absl::AnyInvocable<absl::Status(const Bytes&) &&>;

  // Keeps at most `most` calls under way. All calls end at `end` at the latest. `channel` must outlive the
  // window.
  CallWindow(rpc::Channel* channel, int most, absl::Time end)
      : channel_(channel), most_(most), end_(end), state_(std::make_shared<State>()) {}
  // Blocks until no call is under way.
  ~CallWindow() { Await(0).IgnoreError(); }
  CallWindow(const CallWindow&) = delete;
  CallWindow& operator=(const CallWindow&) = delete;

  // Blocks until one more call may be under way, and starts it. Returns the first error of an earlier one,
  // and then starts none.
  absl::Status Start(absl::string_view method, Bytes request, OnResponse on_response);
  // Blocks until no call is under way. Returns the first error.
  absl::Status Finish() { return Await(0); }

 private:
  // Shared with the calls, which may still be leaving their critical section when the window is destroyed.
  struct State {
    std::atomic<int> under_way{0};  // changed under the lock
    absl::Mutex mutex;
    absl::Status error ABSL_GUARDED_BY(mutex);
  };

  // Blocks until at most `most` calls are under way, and returns the first error.
  absl::Status Await(int most);

  rpc::Channel* const channel_;
  const int most_;
  const absl::Time end_;
  const std::shared_ptr<State> state_;
};

}  // namespace tandem::weights

#endif  // TANDEM_WEIGHTS_CLIENT_CALL_WINDOW_H_
