// SPDX-License-Identifier: Apache-2.0
#include "rpc/security/granted_call.h"

#include <utility>

#include "rpc/transport/forwarding_call.h"

namespace tandem::rpc {
namespace {

class CallOfHolder : public ForwardingCall {
 public:
  CallOfHolder(std::shared_ptr<ServerCall> call, std::shared_ptr<GrantHolder> holder)
      : ForwardingCall(std::move(call)), holder_(std::move(holder)) {
    SetGrant(std::shared_ptr<const GrantClaims>(holder_, &holder_->claims()));
  }

 private:
  void OnFinish(size_t bytes) override { holder_->TakeBytes(bytes); }

  const std::shared_ptr<GrantHolder> holder_;
};

}  // namespace

std::shared_ptr<ServerCall> GrantedCall(std::shared_ptr<ServerCall> call,
                                        std::shared_ptr<GrantHolder> holder) {
  return std::make_shared<CallOfHolder>(std::move(call), std::move(holder));
}

}  // namespace tandem::rpc
