// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_FORWARDING_CHANNEL_H_
#define TANDEM_RPC_FORWARDING_CHANNEL_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/bytes.h"
#include "rpc/channel.h"

namespace tandem::rpc {

// A channel that passes everything on to another one. Derived classes override what they do otherwise, and
// call the function of this class to pass it on.
class ForwardingChannel : public Channel {
 public:
  explicit ForwardingChannel(std::shared_ptr<Channel> to) : to_(std::move(to)) {}

  void CallAsync(absl::string_view method, Bytes request, const CallOptions& options, Done done) override {
    to_->CallAsync(method, std::move(request), options, std::move(done));
  }
  std::shared_ptr<char> RequestMemory(size_t bytes) override { return to_->RequestMemory(bytes); }
  void PrepareInlinePoll() override { to_->PrepareInlinePoll(); }
  void InlinePoll(absl::FunctionRef<bool()> over, absl::Time deadline) override {
    to_->InlinePoll(over, deadline);
  }
  absl::string_view transport() const override { return to_->transport(); }
  const std::string& target() const override { return to_->target(); }

 protected:
  Channel& to() const { return *to_; }

 private:
  const std::shared_ptr<Channel> to_;
};

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_FORWARDING_CHANNEL_H_
