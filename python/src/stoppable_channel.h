// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PYTHON_SRC_STOPPABLE_CHANNEL_H_
#define TANDEM_PYTHON_SRC_STOPPABLE_CHANNEL_H_

#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "rpc/channel.h"
#include "rpc/forwarding_channel.h"

namespace tandem::python {

// Returns the token that cancels the calls which this thread starts on a StoppableChannel.
inline std::stop_token& StopOfThisThread() {
  thread_local std::stop_token token;
  return token;
}

// Cancels the calls that threads of a library make, which have no token of their own. Thread-safe.
class CallStopper {
 public:
  // Returns the token of a call that begins now.
  std::stop_token token() {
    absl::MutexLock lock(&mutex_);
    return calls_.get_token();
  }
  // Ends the calls under way with Cancelled. Later ones are made.
  void StopCalls() {
    std::stop_source calls;
    {
      absl::MutexLock lock(&mutex_);
      if (!closed_) std::swap(calls, calls_);
    }
    calls.request_stop();
  }
  // Ends the calls under way and all later ones.
  void Close() {
    std::stop_source calls;
    {
      absl::MutexLock lock(&mutex_);
      closed_ = true;
      calls = calls_;
    }
    calls.request_stop();
  }

 private:
  absl::Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::stop_source calls_ ABSL_GUARDED_BY(mutex_);
};

// A channel whose calls end with Cancelled when the token that `token` returned at their start is stopped:
// that of the thread that has started them. Calls with a token of their own keep it. Thread-safe.
class StoppableChannel : public rpc::ForwardingChannel {
 public:
  explicit StoppableChannel(std::shared_ptr<rpc::Channel> channel,
                            std::function<std::stop_token()> token = StopOfThisThread)
      : ForwardingChannel(std::move(channel)), token_(std::move(token)) {}

  void CallAsync(absl::string_view method, Bytes request, const rpc::CallOptions& options,
                 Done done) override {
    rpc::CallOptions stoppable = options;
    if (!stoppable.cancel.stop_possible()) stoppable.cancel = token_();
    ForwardingChannel::CallAsync(method, std::move(request), stoppable, std::move(done));
  }

 private:
  const std::function<std::stop_token()> token_;
};

}  // namespace tandem::python

#endif  // TANDEM_PYTHON_SRC_STOPPABLE_CHANNEL_H_
