// SPDX-License-Identifier: Apache-2.0
#include "rpc/grpc/server/stream_service.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "grpcpp/impl/rpc_service_method.h"
#include "rpc/grpc/server/grpc_server_stream.h"
#include "rpc/wire/frame.h"

namespace tandem::rpc {
namespace {

int DefaultThreads() {
  // Half of the processors: the others are for clients on this host and for the tables' own work. More than a
  // few threads would only pass the sockets around among themselves. With one thread alone, each request of a
  // client that sends as fast as it can would delay the other clients.
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / 2, 2, 8);
}

}  // namespace

StreamService::StreamService(const ServerOptions& options, const std::vector<rpc::Service>& services,
                             std::shared_ptr<RequestMemory> memory)
    : options_(options), memory_(std::move(memory)) {
  for (const rpc::Service& service : services) {
    for (const Method& method : service.methods) {
      handlers_[absl::StrCat("/", service.name, "/", method.name)] = method.handler;
    }
  }
  AddMethod(new grpc::internal::RpcServiceMethod(kStreamMethod, grpc::internal::RpcMethod::BIDI_STREAMING,
                                                 nullptr));
  MarkMethodRaw(0);
}

void StreamService::AddTo(grpc::ServerBuilder* builder) {
  builder->RegisterService(this);
  const int threads = options_.threads > 0 ? options_.threads : DefaultThreads();
  for (int i = 0; i < threads; ++i) {
    std::unique_ptr<grpc::ServerCompletionQueue> queue = builder->AddCompletionQueue();
    Loop& loop = loops_.emplace_back();
    loop.queue = queue.get();
    loop.loop = std::make_unique<CompletionLoop>(std::move(queue));
  }
}

std::vector<grpc::ServerCompletionQueue*> StreamService::queues() const {
  std::vector<grpc::ServerCompletionQueue*> queues;
  for (const Loop& loop : loops_) queues.push_back(loop.queue);
  return queues;
}

void StreamService::Serve() {
  for (Loop& loop : loops_) {
    Accept(loop.loop.get(), loop.queue);
    loop.loop->Start();
  }
}

const Handler* StreamService::Find(const std::string& path) const {
  const auto found = handlers_.find(path);
  return found == handlers_.end() ? nullptr : &found->second;
}

void StreamService::Accept(CompletionLoop* loop, grpc::ServerCompletionQueue* queue) {
  auto stream = std::make_shared<GrpcServerStream>(this, loop, queue);
  Add(stream);
  stream->Accept();
}

void StreamService::Add(std::shared_ptr<GrpcServerStream> stream) {
  absl::MutexLock lock(&mutex_);
  streams_.insert(std::move(stream));
}

void StreamService::Remove(const std::shared_ptr<GrpcServerStream>& stream) {
  absl::MutexLock lock(&mutex_);
  streams_.erase(stream);
}

void StreamService::Drain() {
  draining_.store(true);
  std::vector<std::shared_ptr<GrpcServerStream>> streams;
  {
    absl::MutexLock lock(&mutex_);
    streams.assign(streams_.begin(), streams_.end());
  }
  for (const auto& stream : streams) stream->Drain();
}

void StreamService::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    const auto none = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return streams_.empty(); };
    mutex_.Await(absl::Condition(&none));
  }
  for (Loop& loop : loops_) loop.loop->Stop();
}

}  // namespace tandem::rpc
