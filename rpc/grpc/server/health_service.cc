// SPDX-License-Identifier: Apache-2.0
#include "rpc/grpc/server/health_service.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/io/coded_stream.h"
#include "grpcpp/impl/rpc_service_method.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/async_stream.h"
#include "grpcpp/support/byte_buffer.h"
#include "rpc/grpc/completion_loop.h"
#include "rpc/grpc/grpc_bytes.h"

namespace tandem::rpc {
namespace {

constexpr size_t kMaxRequestBytes = 4096;

// Parses HealthCheckRequest { string service = 1; }.
absl::StatusOr<std::string> ServiceOf(const Bytes& request) {
  const std::string text = request.Flatten();
  google::protobuf::io::CodedInputStream in(reinterpret_cast<const uint8_t*>(text.data()),
                                            static_cast<int>(text.size()));
  std::string service;
  while (const uint32_t tag = in.ReadTag()) {
    uint32_t length;
    if (tag != 0x0a || !in.ReadVarint32(&length) || length > text.size() ||
        !in.ReadString(&service, static_cast<int>(length))) {
      return absl::InvalidArgumentError("the request is no grpc.health.v1.HealthCheckRequest");
    }
  }
  if (!in.ConsumedEntireMessage()) {
    return absl::InvalidArgumentError("the request is no grpc.health.v1.HealthCheckRequest");
  }
  return service;
}

// Serialises HealthCheckResponse { ServingStatus status = 1; }.
Bytes Response(char status) { return Bytes(std::string({'\x08', status})); }

}  // namespace

// A call of Watch, from before it arrives until it ends. Each of its operations holds one reference.
class WatchRpc : public std::enable_shared_from_this<WatchRpc> {
 public:
  WatchRpc(HealthService* health, grpc::ServerCompletionQueue* queue) : health_(health), queue_(queue) {}

  void Accept() {
    {
      absl::MutexLock lock(&mutex_);
      self_ = shared_from_this();
      operations_ = 1;
    }
    rpc_ = std::make_unique<Rpc>();
    rpc_->context.AsyncNotifyWhenDone(done_tag_.tag());
    health_->methods_.RequestAsyncServerStreaming(1, &rpc_->context, &rpc_->request, &rpc_->stream, queue_,
                                                  queue_, accepted_tag_.tag());
  }

  const std::string& service() const { return service_; }
  // Reports `status` to the watcher. `last`: the server shuts down, so the status will not change again.
  void Tell(char status, bool last) {
    mutex_.Lock();
    wanted_ = status;
    last_ = last;
    Proceed();
  }

 private:
  struct Rpc {
    grpc::ServerContext context;
    grpc::ByteBuffer request;
    grpc::ServerAsyncWriter<grpc::ByteBuffer> stream{&context};
  };

  void OnAccepted(bool ok) {
    if (!ok) return EndOperation();
    {
      absl::MutexLock lock(&mutex_);
      ++operations_;  // until OnDone
    }
    health_->AcceptWatch(queue_);
    health_->memory_->Of(rpc_->context.peer())->NoteHandled(rpc_->request.Length() + kMaxHeaderBytes);
    absl::StatusOr<std::string> service = absl::InvalidArgumentError("the request is too long");
    if (rpc_->request.Length() <= kMaxRequestBytes) service = ServiceOf(FromByteBuffer(rpc_->request));
    if (!service.ok()) {
      mutex_.Lock();
      refused_ = grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, std::string(service.status().message()));
      Proceed();
      return EndOperation();
    }
    service_ = *std::move(service);
    HealthService::Status status;
    bool last;
    {
      absl::MutexLock lock(&health_->mutex_);
      status = health_->StatusOf(service_);
      last = health_->shut_down_;
      if (!last) health_->watchers_.insert(shared_from_this());
    }
    mutex_.Lock();
    if (wanted_ == 0) {  // otherwise it was already told a newer state
      wanted_ = status;
      last_ = last;
    }
    Proceed();
    EndOperation();
  }
  void OnWritten(bool ok) {
    mutex_.Lock();
    writing_ = false;
    client_gone_ = client_gone_ || !ok;
    Proceed();
    EndOperation();
  }
  void OnFinished(bool ok) { EndOperation(); }
  void OnDone(bool ok) {
    {
      absl::MutexLock lock(&health_->mutex_);
      health_->watchers_.erase(shared_from_this());
    }
    mutex_.Lock();
    client_gone_ = true;
    // gRPC requires that every call is finished.
    Proceed();
    EndOperation();
  }
  // Writes a new state, or ends the call. Releases the lock.
  void Proceed() ABSL_UNLOCK_FUNCTION(mutex_) {
    std::optional<grpc::Status> finish;
    std::optional<char> write;
    if (!writing_ && !finished_) {
      if (client_gone_) {
        finish = grpc::Status::CANCELLED;
      } else if (refused_.has_value()) {
        finish = refused_;
      } else if (wanted_ != sent_) {
        write = sent_ = wanted_;
        writing_ = true;
      } else if (last_) {
        finish = grpc::Status(grpc::StatusCode::UNAVAILABLE, "the server is shutting down");
      }
      finished_ = finish.has_value();
      if (finish.has_value() || write.has_value()) ++operations_;
    }
    mutex_.Unlock();
    if (finish.has_value()) rpc_->stream.Finish(*finish, finished_tag_.tag());
    if (write.has_value()) rpc_->stream.Write(ToByteBuffer(Response(*write)), written_tag_.tag());
  }
  void EndOperation() {
    std::shared_ptr<WatchRpc> self;
    {
      absl::MutexLock lock(&mutex_);
      if (--operations_ > 0) return;
      self = std::move(self_);
    }
    rpc_.reset();
    health_->watches_.Remove();
  }

  HealthService* const health_;
  grpc::ServerCompletionQueue* const queue_;
  std::unique_ptr<Rpc> rpc_;  // exists while operations_ > 0
  std::string service_;       // set before it is added to the watchers
  MemberTag<WatchRpc> accepted_tag_{this, &WatchRpc::OnAccepted};
  MemberTag<WatchRpc> written_tag_{this, &WatchRpc::OnWritten};
  MemberTag<WatchRpc> finished_tag_{this, &WatchRpc::OnFinished};
  MemberTag<WatchRpc> done_tag_{this, &WatchRpc::OnDone};
  absl::Mutex mutex_;
  char wanted_ ABSL_GUARDED_BY(mutex_) = 0;  // 0: not known yet
  char sent_ ABSL_GUARDED_BY(mutex_) = 0;
  bool last_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  bool client_gone_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<grpc::Status> refused_ ABSL_GUARDED_BY(mutex_);
  int operations_ ABSL_GUARDED_BY(mutex_) = 0;
  std::shared_ptr<WatchRpc> self_ ABSL_GUARDED_BY(mutex_);
};

HealthService::Methods::Methods(const rpc::Service& check, std::shared_ptr<RequestMemory> memory)
    : UnaryService(check, kMaxRequestBytes, std::move(memory)) {
  AddMethod(new grpc::internal::RpcServiceMethod("/grpc.health.v1.Health/Watch",
                                                 grpc::internal::RpcMethod::SERVER_STREAMING, nullptr));
  MarkMethodRaw(1);
}

HealthService::HealthService(std::shared_ptr<RequestMemory> memory)
    : memory_(memory), methods_(MakeCheck(), std::move(memory)) {}

rpc::Service HealthService::MakeCheck() {
  return {"grpc.health.v1.Health",
          {{"Check", Right::kObserve, [this](std::shared_ptr<ServerCall> call) {
              const absl::StatusOr<std::string> service = ServiceOf(call->request());
              if (!service.ok()) return call->Finish(service.status());
              Status status;
              {
                absl::MutexLock lock(&mutex_);
                status = StatusOf(*service);
              }
              if (status == kServiceUnknown) {
                return call->Finish(absl::NotFoundError(
                    absl::StrCat("the server has no service \"", absl::CHexEscape(*service), "\"")));
              }
              call->Finish(Response(status));
            }}}};
}

HealthService::Status HealthService::StatusOf(const std::string& service) const {
  const auto found = serving_.find(service);
  if (found == serving_.end()) return kServiceUnknown;
  return found->second && !shut_down_ ? kServing : kNotServing;
}

void HealthService::Serve(grpc::ServerCompletionQueue* queue) {
  methods_.Serve(queue);
  AcceptWatch(queue);
}

void HealthService::AcceptWatch(grpc::ServerCompletionQueue* queue) {
  watches_.Add();
  std::make_shared<WatchRpc>(this, queue)->Accept();
}

void HealthService::AwaitNone() {
  methods_.AwaitNone();
  watches_.AwaitNone();
}

void HealthService::SetServing(const std::string& service, bool serving) {
  std::vector<std::shared_ptr<WatchRpc>> told;
  {
    absl::MutexLock lock(&mutex_);
    if (shut_down_) return;
    serving_[service] = serving;
    for (const auto& watcher : watchers_) {
      if (watcher->service() == service) told.push_back(watcher);
    }
  }
  for (const auto& watcher : told) watcher->Tell(serving ? kServing : kNotServing, /*last=*/false);
}

void HealthService::Shutdown() {
  std::vector<std::pair<std::shared_ptr<WatchRpc>, Status>> told;
  {
    absl::MutexLock lock(&mutex_);
    shut_down_ = true;
    for (const auto& watcher : watchers_) told.emplace_back(watcher, StatusOf(watcher->service()));
    watchers_.clear();
  }
  for (const auto& [watcher, status] : told) watcher->Tell(status, /*last=*/true);
}

}  // namespace tandem::rpc
