// SPDX-License-Identifier: Apache-2.0
#include "rpc/security/granted_call.h"

#include <utility>

#include "rpc/transport/forwarding_call.h"

namespace tandem::rpc {
namespace {

class CallOfHolder : public ForwardingCall {
 public:
  CallOfHolder(std::shared_ptr<ServerCall> call, std::shared_ptr<GrantHolder> holder,
               std::function<void(const absl::Status&)> refused)
      : ForwardingCall(std::move(call)), holder_(std::move(holder)), refused_(std::move(refused)) {
    SetGrant(std::shared_ptr<const GrantClaims>(holder_, &holder_->claims()));
  }

  void Finish(absl::StatusOr<Bytes> response) override {
    if (absl::IsPermissionDenied(response.status())) refused_(response.status());
    ForwardingCall::Finish(std::move(response));
  }

 private:
  void OnFinish(size_t bytes) override { holder_->TakeBytes(bytes); }

  const std::shared_ptr<GrantHolder> holder_;
  const std::function<void(const absl::Status&)> refused_;
};

}  // namespace

std::shared_ptr<ServerCall> GrantedCall(std::shared_ptr<ServerCall> call, std::shared_ptr<GrantHolder> holder,
                                        std::function<void(const absl::Status&)> refused) {
  return std::make_shared<CallOfHolder>(std::move(call), std::move(holder), std::move(refused));
}

}  // namespace tandem::rpc
