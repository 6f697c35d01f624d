// SPDX-License-Identifier: Apache-2.0
#include "rpc/shm/server_connection.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/ticks.h"
#include "rpc/cancel_hook.h"

namespace tandem::rpc::shm {

namespace {
// After this time the thread serves its next connection.
constexpr int64_t kTurnNs = 100'000;
}  // namespace

MethodTable::MethodTable(std::vector<Service> services) {
  for (Service& service : services) {
    for (Method& method : service.methods) {
      handlers_[absl::StrCat("/", service.name, "/", method.name)] = std::move(method.handler);
    }
  }
}

const Handler* MethodTable::Find(absl::string_view name) const {
  const auto found = handlers_.find(name);
  return found == handlers_.end() ? nullptr : &found->second;
}

// The server call that a handler gets.
class ShmServerCall : public ServerCall {
 public:
  ShmServerCall(std::shared_ptr<ServerConnection> connection, Message request)
      : connection_(std::move(connection)),
        request_(std::move(request)),
        peer_(absl::StrCat("shm:", connection_->link().peer())) {}
  ~ShmServerCall() override {
    Finish(absl::InternalError(absl::StrCat("the handler of ", request_.text, " gave no answer")));
  }

  const Bytes& request() const override { return request_.body; }
  const std::string& peer() const override { return peer_; }
  const Caller& caller() const override { return connection_->caller_; }
  absl::Time deadline() const override {
    return request_.deadline_ns == kNoDeadline ? absl::InfiniteFuture()
                                               : FromSteadyNanoseconds(request_.deadline_ns);
  }
  bool IsCancelled() const override {
    return cancel_hook_.cancelled() || connection_->link().broken() ||
           SteadyNanoseconds() > request_.deadline_ns;
  }
  void Finish(absl::StatusOr<Bytes> response) override {
    if (finished_.exchange(true)) return;
    cancel_hook_.Drop();
    connection_->Respond(request_.call, request_.deadline_ns, std::move(response));
  }
  std::shared_ptr<char> ResponseMemory(size_t bytes) override {
    return connection_->link().BorrowMemory(bytes);
  }

  void OnCancel(absl::AnyInvocable<void() &&> hook) override { cancel_hook_.Set(std::move(hook)); }

  void Cancel() {
    if (CancelHook::Hook hook = cancel_hook_.Cancel()) std::move(hook)();
  }

 private:
  const std::shared_ptr<ServerConnection> connection_;
  const Message request_;
  const std::string peer_;
  std::atomic<bool> finished_{false};
  CancelHook cancel_hook_;
};

bool ServerConnection::Serve() {
  bool worked = link_->has_queue() && link_->MoveQueue();
  Message message;
  int64_t end_ns = 0;
  while (!Congested() && (end_ns == 0 || SteadyNanoseconds() < end_ns) && link_->Receive(&message)) {
    worked = true;
    if (end_ns == 0) end_ns = SteadyNanoseconds() + kTurnNs;
    if (message.kind == RecordKind::kRequest) {
      Begin(std::move(message));
      continue;
    }
    std::shared_ptr<ShmServerCall> cancelled;
    {
      absl::MutexLock lock(&mutex_);
      const auto found = calls_.find(message.call);
      if (found != calls_.end()) cancelled = found->second.lock();
    }
    if (cancelled != nullptr) cancelled->Cancel();
  }
  return worked;
}

void ServerConnection::Begin(Message request) {
  if (closing_->begun()) return Refuse(request, absl::UnavailableError("the server is shutting down"));
  const Handler* handler = methods_->Find(request.text);
  if (handler == nullptr) return Refuse(request, absl::UnimplementedError("there is no such method"));
  if (request.too_large) {
    return Refuse(request, absl::ResourceExhaustedError(absl::StrCat(
                               "the request exceeds the server's limit of ", limits_.max_message_bytes,
                               " bytes (ServerOptions::max_message_bytes)")));
  }
  if (unfinished() >= limits_.max_calls) {
    return Refuse(request, absl::ResourceExhaustedError(absl::StrCat("the connection has ", limits_.max_calls,
                                                                     " calls without an answer")));
  }
  const uint64_t id = request.call;
  auto call = std::make_shared<ShmServerCall>(shared_from_this(), std::move(request));
  bool added;
  {
    absl::MutexLock lock(&mutex_);
    added = calls_.emplace(id, call).second;
  }
  if (!added) {
    link_->Break(absl::DataLossError("the shared memory is damaged: two calls have one number"));
    return;
  }
  (*handler)(std::move(call));
}

void ServerConnection::Refuse(const Message& request, const absl::Status& why) {
  Reply(request.call, request.deadline_ns, why);
}

void ServerConnection::Respond(uint64_t call, int64_t deadline_ns, absl::StatusOr<Bytes> response) {
  {
    absl::MutexLock lock(&mutex_);
    calls_.erase(call);
  }
  Reply(call, deadline_ns, std::move(response));
  closing_->CallEnded();
}

void ServerConnection::Reply(uint64_t call, int64_t deadline_ns, absl::StatusOr<Bytes> response) {
  if (response.ok() && response->size() > limits_.max_message_bytes) {
    response = absl::ResourceExhaustedError(
        absl::StrCat("an answer of ", response->size(), " bytes exceeds the server's limit of ",
                     limits_.max_message_bytes, " bytes (ServerOptions::max_message_bytes)"));
  }
  Message message;
  message.kind = RecordKind::kResponse;
  message.call = call;
  message.deadline_ns = deadline_ns;
  message.code = response.status().code();
  if (response.ok()) {
    message.body = *std::move(response);
  } else {
    message.text = std::string(response.status().message());
  }
  link_->Send(std::move(message));
}

void ServerConnection::Close(const absl::Status& why) {
  link_->Close(why);
  // Dropped after the lock is released, since these may be the last references.
  std::vector<std::shared_ptr<ShmServerCall>> calls;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [id, call] : calls_) {
      if (auto alive = call.lock()) calls.push_back(std::move(alive));
    }
  }
  for (const auto& call : calls) call->Cancel();
}

size_t ServerConnection::unfinished() const {
  absl::MutexLock lock(&mutex_);
  return calls_.size();
}

}  // namespace tandem::rpc::shm
