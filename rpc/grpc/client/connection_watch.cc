// SPDX-License-Identifier: Apache-2.0
#include "rpc/grpc/client/connection_watch.h"

#include "absl/time/time.h"
#include "grpcpp/client_context.h"
#include "rpc/grpc/grpc_bytes.h"
#include "rpc/grpc/grpc_time.h"

namespace tandem::rpc {
namespace {

constexpr absl::Duration kLook = absl::Seconds(5);
const char kMethod[] = "/grpc.health.v1.Health/Check";

}  // namespace

struct ConnectionWatch::Waiting final : public CompletionTag {
  explicit Waiting(ConnectionWatch* owner) : owner(owner) {}
  void OnEvent(bool ok) override { owner->OnOver(); }

  ConnectionWatch* const owner;
  grpc::ClientContext context;
  grpc::ByteBuffer response;
  grpc::Status status;
  std::unique_ptr<grpc::GenericClientAsyncResponseReader> reader;
};

ConnectionWatch::ConnectionWatch(grpc::GenericStub* stub, CompletionLoop* loop) : stub_(stub), loop_(loop) {}

ConnectionWatch::~ConnectionWatch() {
  absl::MutexLock lock(&mutex_);
  if (waiting_ != nullptr) waiting_->context.TryCancel();
  const auto over = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return waiting_ == nullptr; };
  mutex_.Await(absl::Condition(&over));
}

void ConnectionWatch::Look() {
  absl::MutexLock lock(&mutex_);
  if (waiting_ != nullptr) return;
  waiting_ = std::make_unique<Waiting>(this);
  waiting_->context.set_wait_for_ready(true);
  waiting_->context.set_deadline(GrpcDeadlineIn(kLook));
  waiting_->reader =
      stub_->PrepareUnaryCall(&waiting_->context, kMethod, ToByteBuffer(Bytes()), loop_->queue());
  waiting_->reader->StartCall();
  waiting_->reader->Finish(&waiting_->response, &waiting_->status, waiting_->tag());
}

void ConnectionWatch::OnOver() {
  absl::MutexLock lock(&mutex_);
  waiting_.reset();  // it refers to the gRPC channel, which may be destroyed once the lock is released
}

}  // namespace tandem::rpc
