// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_TRANSPORT_FORWARDING_CALL_H_
#define TANDEM_RPC_TRANSPORT_FORWARDING_CALL_H_

#include <memory>
#include <string>
#include <utility>

#include "rpc/service.h"

namespace tandem::rpc {

// A call that another one answers. Classes derived from it change what they must.
class ForwardingCall : public ServerCall {
 public:
  explicit ForwardingCall(std::shared_ptr<ServerCall> call) : call_(std::move(call)) {}

  const Bytes& request() const override { return call_->request(); }
  const std::string& peer() const override { return call_->peer(); }
  const Caller& caller() const override { return call_->caller(); }
  absl::Time deadline() const override { return call_->deadline(); }
  bool IsCancelled() const override { return call_->IsCancelled(); }
  void Finish(absl::StatusOr<Bytes> response) override {
    const size_t size = response.ok() ? response->size() : 0;
    OnFinish(size);
    call_->Finish(std::move(response));
  }
  void FinishInChunks(std::unique_ptr<ResponseSource> answer) override {
    OnFinish(answer->size());
    call_->FinishInChunks(std::move(answer));
  }
  void OnCancel(absl::AnyInvocable<void() &&> hook) override { call_->OnCancel(std::move(hook)); }
  std::shared_ptr<char> ResponseMemory(size_t bytes) override { return call_->ResponseMemory(bytes); }

 private:
  // Called before a response of so many bytes is sent; 0 for an error.
  virtual void OnFinish(size_t bytes) = 0;

  const std::shared_ptr<ServerCall> call_;
};

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_TRANSPORT_FORWARDING_CALL_H_
