// SPDX-License-Identifier: Apache-2.0
#include "rpc/grpc/server/unary_service.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "grpcpp/impl/rpc_service_method.h"
#include "rpc/cancel_hook.h"
#include "rpc/grpc/caller_metadata.h"
#include "rpc/grpc/completion_loop.h"
#include "rpc/grpc/grpc_bytes.h"
#include "rpc/grpc/grpc_status.h"
#include "rpc/grpc/grpc_time.h"
#include "rpc/wire/frame.h"

namespace tandem::rpc {

// A gRPC call, from before it arrives until it ends. It keeps itself alive until its last operation has
// ended; the handler's Call also holds a reference.
class UnaryRpc : public std::enable_shared_from_this<UnaryRpc> {
 public:
  class Call;

  UnaryRpc(UnaryService* service, int method, grpc::ServerCompletionQueue* queue)
      : service_(service), method_(method), queue_(queue) {}

  void Accept() {
    {
      absl::MutexLock lock(&mutex_);
      self_ = shared_from_this();
      operations_ = 1;
    }
    rpc_ = std::make_unique<Rpc>();
    rpc_->context.AsyncNotifyWhenDone(done_tag_.tag());
    service_->RequestAsyncUnary(method_, &rpc_->context, &rpc_->request, &rpc_->writer, queue_, queue_,
                                accepted_tag_.tag());
  }

  // Sends the response. Only the first one counts: a cancelled call may already be over when its handler
  // finishes.
  void Respond(absl::StatusOr<Bytes> response) {
    if (answered_.exchange(true)) return;
    if (response.ok() && response->size() > service_->max_message_bytes_) {
      response = absl::ResourceExhaustedError(
          absl::StrCat("an answer of ", response->size(), " bytes exceeds the server's limit of ",
                       service_->max_message_bytes_, " bytes (", service_->limit_, ")"));
    }
    {
      // One operation is still in progress: the one that reports the end of the call.
      absl::MutexLock lock(&mutex_);
      ++operations_;
    }
    if (response.ok()) {
      rpc_->writer.Finish(ToByteBuffer(*response), grpc::Status::OK, finished_tag_.tag());
    } else {
      rpc_->writer.FinishWithError(ToGrpcStatus(response.status()), finished_tag_.tag());
    }
  }

 private:
  struct Rpc {
    grpc::ServerContext context;
    grpc::ByteBuffer request;
    grpc::ServerAsyncResponseWriter<grpc::ByteBuffer> writer{&context};
  };

  void OnAccepted(bool ok);
  void OnFinished(bool ok) { EndOperation(); }
  void OnDone(bool ok) {
    if (rpc_->context.IsCancelled()) {
      if (CancelHook::Hook hook = cancel_hook_.Cancel()) std::move(hook)();
      // Without this, a deferred call would delay the server's shutdown until its handler responds.
      Respond(absl::CancelledError("the caller went away or its deadline passed"));
    }
    EndOperation();
  }
  void EndOperation() {
    std::shared_ptr<UnaryRpc> self;
    {
      absl::MutexLock lock(&mutex_);
      if (--operations_ > 0) return;
      self = std::move(self_);
    }
    rpc_.reset();
    service_->calls_.Remove();
  }

  UnaryService* const service_;
  const int method_;
  grpc::ServerCompletionQueue* const queue_;
  std::unique_ptr<Rpc> rpc_;                  // exists while operations_ > 0
  std::shared_ptr<ConnectionMemory> memory_;  // set when the call has arrived
  std::atomic<bool> answered_{false};
  CancelHook cancel_hook_;
  MemberTag<UnaryRpc> accepted_tag_{this, &UnaryRpc::OnAccepted};
  MemberTag<UnaryRpc> finished_tag_{this, &UnaryRpc::OnFinished};
  MemberTag<UnaryRpc> done_tag_{this, &UnaryRpc::OnDone};
  absl::Mutex mutex_;
  int operations_ ABSL_GUARDED_BY(mutex_) = 0;
  std::shared_ptr<UnaryRpc> self_ ABSL_GUARDED_BY(mutex_);
};

// The server call that a handler gets.
class UnaryRpc::Call : public ServerCall {
 public:
  Call(std::shared_ptr<UnaryRpc> rpc, std::string path, Bytes request)
      : rpc_(std::move(rpc)),
        path_(std::move(path)),
        request_(std::move(request)),
        peer_(rpc_->rpc_->context.peer()),
        caller_(CallerOf(rpc_->rpc_->context)),
        deadline_(FromGrpcDeadline(rpc_->rpc_->context.raw_deadline())) {
    rpc_->memory_->Hold(request_.size());
  }

  ~Call() override {
    if (!finished_.load())
      rpc_->Respond(absl::InternalError(absl::StrCat("the handler of ", path_, " gave no answer")));
    rpc_->memory_->Release(request_.size());
  }

  const Bytes& request() const override { return request_; }
  const std::string& peer() const override { return peer_; }
  const Caller& caller() const override { return caller_; }
  absl::Time deadline() const override { return deadline_; }
  bool IsCancelled() const override { return rpc_->cancel_hook_.cancelled() || MonotonicNow() > deadline_; }
  void Finish(absl::StatusOr<Bytes> response) override {
    finished_.store(true);
    rpc_->cancel_hook_.Drop();
    rpc_->Respond(std::move(response));
  }
  void OnCancel(absl::AnyInvocable<void() &&> hook) override { rpc_->cancel_hook_.Set(std::move(hook)); }

 private:
  const std::shared_ptr<UnaryRpc> rpc_;
  const std::string path_;
  const Bytes request_;
  const std::string peer_;
  const Caller caller_;
  const absl::Time deadline_;
  std::atomic<bool> finished_{false};
};

void UnaryRpc::OnAccepted(bool ok) {
  if (!ok) {  // the server shuts down; the done tag will not arrive
    EndOperation();
    return;
  }
  {
    absl::MutexLock lock(&mutex_);
    ++operations_;  // until OnDone
  }
  service_->Accept(method_, queue_);
  const size_t size = rpc_->request.Length();
  memory_ = service_->memory_->Of(rpc_->context.peer());
  memory_->NoteHandled(size + kMaxHeaderBytes);
  if (absl::Status refused = memory_->Admit(size); !refused.ok()) {
    Respond(std::move(refused));
  } else if (size > service_->max_message_bytes_) {
    Respond(absl::ResourceExhaustedError(
        absl::StrCat("a request of ", size, " bytes exceeds the server's limit of ",
                     service_->max_message_bytes_, " bytes (", service_->limit_, ")")));
  } else {
    const UnaryService::RawMethod& method = service_->methods_[method_];
    method.handler(std::make_shared<Call>(shared_from_this(), method.path, FromByteBuffer(rpc_->request)));
  }
  EndOperation();
}

UnaryService::UnaryService(const rpc::Service& service, size_t max_message_bytes,
                           std::shared_ptr<RequestMemory> memory)
    : max_message_bytes_(std::min(max_message_bytes, kMaxUnaryBytes)),
      memory_(std::move(memory)),
      limit_(max_message_bytes <= kMaxUnaryBytes
                 ? "ServerOptions::max_message_bytes"
                 : absl::StrCat("of a gRPC call; longer messages go over ", kStreamMethod)) {
  for (const Method& method : service.methods) {
    const RawMethod& raw =
        methods_.emplace_back(RawMethod{absl::StrCat("/", service.name, "/", method.name), method.handler});
    AddMethod(new grpc::internal::RpcServiceMethod(raw.path.c_str(), grpc::internal::RpcMethod::NORMAL_RPC,
                                                   nullptr));
    MarkMethodRaw(static_cast<int>(methods_.size()) - 1);
  }
}

void UnaryService::Serve(grpc::ServerCompletionQueue* queue) {
  for (size_t i = 0; i < methods_.size(); ++i) Accept(static_cast<int>(i), queue);
}

void UnaryService::Accept(int method, grpc::ServerCompletionQueue* queue) {
  calls_.Add();
  std::make_shared<UnaryRpc>(this, method, queue)->Accept();
}

}  // namespace tandem::rpc
