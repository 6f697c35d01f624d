// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PYTHON_SRC_STOPPABLE_CHANNEL_H_
#define TANDEM_PYTHON_SRC_STOPPABLE_CHANNEL_H_

#include <memory>
#include <stop_token>
#include <string>
#include <utility>

#include "rpc/channel.h"

namespace tandem::python {

// Returns the token that cancels the calls which this thread starts on a StoppableChannel.
inline std::stop_token& StopOfThisThread() {
  thread_local std::stop_token token;
  return token;
}

// A channel whose calls end with Cancelled when the token of the thread that started them is stopped, unless
// they have a token of their own. Thread-safe.
class StoppableChannel : public rpc::Channel {
 public:
  explicit StoppableChannel(std::shared_ptr<rpc::Channel> channel) : channel_(std::move(channel)) {}

  void CallAsync(absl::string_view method, Bytes request, const rpc::CallOptions& options,
                 Done done) override {
    rpc::CallOptions stoppable = options;
    if (!stoppable.cancel.stop_possible()) stoppable.cancel = StopOfThisThread();
    channel_->CallAsync(method, std::move(request), stoppable, std::move(done));
  }
  std::shared_ptr<char> RequestMemory(size_t bytes) override { return channel_->RequestMemory(bytes); }
  void PrepareInlinePoll() override { channel_->PrepareInlinePoll(); }
  void InlinePoll(absl::FunctionRef<bool()> over, absl::Time deadline) override {
    channel_->InlinePoll(over, deadline);
  }
  absl::string_view transport() const override { return channel_->transport(); }
  const std::string& target() const override { return channel_->target(); }

 private:
  const std::shared_ptr<rpc::Channel> channel_;
};

}  // namespace tandem::python

#endif  // TANDEM_PYTHON_SRC_STOPPABLE_CHANNEL_H_
