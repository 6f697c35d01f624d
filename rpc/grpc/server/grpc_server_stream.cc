// SPDX-License-Identifier: Apache-2.0
#include "rpc/grpc/server/grpc_server_stream.h"

#include <algorithm>
#include <deque>
#include <thread>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/ticks.h"
#include "rpc/grpc/caller_metadata.h"
#include "rpc/grpc/grpc_bytes.h"

namespace tandem::rpc {
namespace {

// Approximate memory of a call in addition to its request.
constexpr size_t kCallOverhead = 512;
// The longest time that responses to the frames of one message may wait to be sent together.
constexpr int64_t kHoldNs = 30'000;

absl::Status TooLarge(size_t size, size_t limit) {
  return absl::ResourceExhaustedError(absl::StrCat("an answer of ", size,
                                                   " bytes exceeds the server's limit of ", limit,
                                                   " bytes (ServerOptions::max_message_bytes)"));
}

absl::Status Broken(uint64_t call, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("broken stream: call ", call, " ", what));
}

}  // namespace

// The server call that a handler gets.
class GrpcServerStream::Call : public ServerCall {
 public:
  Call(std::shared_ptr<GrpcServerStream> stream, uint64_t number, std::string method, Bytes request,
       absl::Time deadline)
      : stream_(std::move(stream)),
        number_(number),
        method_(std::move(method)),
        request_(std::move(request)),
        deadline_(deadline) {}

  ~Call() override {
    if (!finished_.load()) {
      stream_->Respond(number_,
                       absl::InternalError(absl::StrCat("the handler of ", method_, " gave no answer")));
    }
    stream_->memory_->Release(request_.size() + kCallOverhead);
  }

  const Bytes& request() const override { return request_; }
  const std::string& peer() const override { return stream_->peer_; }
  const Caller& caller() const override { return stream_->caller_; }
  absl::Time deadline() const override { return deadline_; }
  bool IsCancelled() const override { return cancel_hook_.cancelled() || MonotonicNow() > deadline_; }
  void Finish(absl::StatusOr<Bytes> response) override {
    finished_.store(true);
    cancel_hook_.Drop();
    stream_->Respond(number_, std::move(response));
  }
  void FinishInChunks(std::unique_ptr<ResponseSource> response) override {
    finished_.store(true);
    cancel_hook_.Drop();
    stream_->Respond(number_, std::move(response));
  }
  void OnCancel(absl::AnyInvocable<void() &&> hook) override { cancel_hook_.Set(std::move(hook)); }

  CancelHook::Hook Cancel() { return cancel_hook_.Cancel(); }

 private:
  const std::shared_ptr<GrpcServerStream> stream_;
  const uint64_t number_;
  const std::string method_;
  const Bytes request_;
  const absl::Time deadline_;
  std::atomic<bool> finished_{false};
  CancelHook cancel_hook_;
};

void GrpcServerStream::Accept() {
  {
    absl::MutexLock lock(&mutex_);
    operations_ = 1;
  }
  rpc_.emplace();
  rpc_->context.AsyncNotifyWhenDone(done_tag_.tag());
  service_->RequestAsyncBidiStreaming(0, &rpc_->context, &rpc_->stream, queue_, queue_, accepted_tag_.tag());
}

void GrpcServerStream::OnAccepted(bool ok) {
  if (!ok) {  // the server shuts down; the done tag will not arrive
    EndOperation();
    return;
  }
  service_->Accept(loop_, queue_);
  peer_ = rpc_->context.peer();
  caller_ = CallerOf(rpc_->context);
  memory_ = service_->memory()->Of(peer_);
  memory_->NoteHandled(kMaxHeaderBytes);
  mutex_.Lock();
  accepted_ = true;
  ++operations_;  // until OnDone
  Proceed();
  EndOperation();
}

void GrpcServerStream::Drain() {
  mutex_.Lock();
  if (!accepted_) {
    mutex_.Unlock();
    return;
  }
  Proceed();
}

void GrpcServerStream::Proceed() {
  Bytes frame;
  bool write = false;
  if (!writing_ && !finishing_ && !client_gone_ && !broken_.has_value() && !queue_out_.empty() &&
      batching_thread_ != std::this_thread::get_id()) {
    write = writing_ = true;
    ++operations_;
    FrameQueue::OutgoingMessage turn = queue_out_.Take(batches_);
    mutex_.Unlock();
    frame = turn.Frame();  // may read table rows
    mutex_.Lock();
    queue_out_.PutBack(&turn);
    // If the message was cancelled in the meantime, its rest is destroyed below, without the lock.
    mutex_.Unlock();
    turn = FrameQueue::OutgoingMessage();
    mutex_.Lock();
  }
  std::optional<grpc::Status> finish;
  if (!writing_ && !finishing_ && !client_gone_) {
    if (broken_.has_value()) {
      finish = *broken_;
    } else if (calls_.empty() && !handling_) {
      if (half_closed_) finish = grpc::Status::OK;
      if (service_->draining())
        finish = grpc::Status(grpc::StatusCode::UNAVAILABLE, "the server is shutting down");
    }
    if (finish.has_value()) finishing_ = true;
  }
  // While a client does not read its responses, no further requests are read from it.
  bool read = false;
  if (!reading_ && !half_closed_ && !finishing_ && !client_gone_ && !broken_.has_value() &&
      !ResponsesPending()) {
    read = reading_ = true;
  }
  operations_ += (finish.has_value() ? 1 : 0) + (read ? 1 : 0);
  mutex_.Unlock();
  if (finish.has_value()) rpc_->stream.Finish(*finish, finished_tag_.tag());
  if (write) {
    loop_->NoteMessage(frame.size());
    rpc_->stream.Write(ToByteBuffer(frame), written_tag_.tag());
  }
  if (read) rpc_->stream.Read(&incoming_, read_tag_.tag());
}

bool GrpcServerStream::ResponsesPending() const {
  return queue_out_.bytes() > service_->options().max_unsent_response_bytes;
}

void GrpcServerStream::OnRead(bool ok) {
  if (ok) {
    const Bytes wire = FromByteBuffer(incoming_);
    incoming_.Clear();
    loop_->NoteMessage(wire.size());
    absl::StatusOr<Frames> frames = ParseFrames(wire);
    if (frames.ok()) {
      incoming_frames_ = *std::move(frames);
    } else {
      Break(frames.status());
    }
  } else {
    absl::MutexLock lock(&mutex_);
    half_closed_ = true;
  }
  TakeAll();
}

void GrpcServerStream::TakeAll() {
  const bool several = incoming_frames_.size() > 1;
  int64_t begin = several ? SteadyNanoseconds() : 0;
  while (handled_frames_ < incoming_frames_.size()) {
    mutex_.Lock();
    if (broken_.has_value()) {
      mutex_.Unlock();
      break;
    }
    // Prevents a handler that responds in Take() from ending the stream of a draining server.
    handling_ = true;
    if (several) {
      const bool wait = ResponsesPending() && !client_gone_;
      const int64_t now = SteadyNanoseconds();
      if (wait || now - begin > kHoldNs) {
        batching_thread_ = {};
        Proceed();
        if (wait) return;  // a write is in progress, and OnWritten continues
        begin = now;
        mutex_.Lock();
      }
      batching_thread_ = std::this_thread::get_id();
    }
    mutex_.Unlock();
    if (absl::Status taken = Take(std::move(incoming_frames_[handled_frames_++])); !taken.ok()) Break(taken);
  }
  incoming_frames_.clear();
  handled_frames_ = 0;
  mutex_.Lock();
  batching_thread_ = {};
  handling_ = false;
  reading_ = false;
  Proceed();
  EndOperation();
}

void GrpcServerStream::Break(const absl::Status& why) {
  std::vector<CancelHook::Hook> hooks;
  std::deque<FrameQueue::OutgoingMessage> unsent;  // destroyed without the lock
  {
    absl::MutexLock lock(&mutex_);
    broken_.emplace(grpc::StatusCode::INVALID_ARGUMENT, std::string(why.message()));
    unsent = queue_out_.Clear();
    hooks = CancelAll();
  }
  for (CancelHook::Hook& hook : hooks) std::move(hook)();
}

absl::Status GrpcServerStream::Take(Frame frame) {
  const uint64_t number = frame.header.call();
  if (frame.header.batches()) {
    absl::MutexLock lock(&mutex_);
    batches_ = true;
  }
  if (frame.header.cancel()) {
    CancelCall(number);
    return absl::OkStatus();
  }
  const size_t size = frame.payload.size();
  std::optional<MessageAssembler::Message> message;
  if (frame.header.method().empty()) {
    if (number > last_number_) return Broken(number, "is continued and never began");
    if (!assembler_.Has(number)) {  // it was refused or cancelled
      memory_->NoteHandled(size);
      return absl::OkStatus();
    }
    TANDEM_ASSIGN_OR_RETURN(message, assembler_.Continue(std::move(frame)));
  } else {
    if (number <= last_number_) {
      return Broken(number, absl::StrCat("begins after call ", last_number_, ": numbers must rise"));
    }
    last_number_ = number;
    if (absl::Status refused = Admit(frame); !refused.ok()) {
      memory_->NoteHandled(size);
      mutex_.Lock();
      Enqueue(number, refused);
      Proceed();
      return absl::OkStatus();
    }
    TANDEM_ASSIGN_OR_RETURN(message, assembler_.Begin(std::move(frame)));
  }
  CountPartial();
  if (message.has_value()) {
    memory_->NoteHandled(message->bytes.size());
    Run(*std::move(message));
  }
  return absl::OkStatus();
}

void GrpcServerStream::CountPartial() {
  const size_t now = assembler_.bytes();
  if (now > partial_bytes_) memory_->Hold(now - partial_bytes_);
  if (now < partial_bytes_) memory_->Release(partial_bytes_ - now);
  partial_bytes_ = now;
}

absl::Status GrpcServerStream::Admit(const Frame& frame) {
  const ServerOptions& options = service_->options();
  if (service_->draining()) return absl::UnavailableError("the server is shutting down");
  const uint64_t size = std::max<uint64_t>(frame.header.message_bytes(), frame.payload.size());
  if (size > options.max_message_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a request of ", size, " bytes is larger than max_message_bytes of the server, ",
                     options.max_message_bytes));
  }
  if (service_->Find(frame.header.method()) == nullptr) {
    return absl::UnimplementedError(
        absl::StrCat("the server has no method ", absl::CHexEscape(frame.header.method())));
  }
  return memory_->Admit(size);
}

void GrpcServerStream::Run(MessageAssembler::Message message) {
  const uint64_t number = message.header.call();
  const uint64_t timeout_us = message.header.timeout_us();
  constexpr uint64_t kForeverUs = uint64_t{1000} * 365 * 24 * 3600 * 1000000;
  const absl::Time deadline = timeout_us == 0 || timeout_us > kForeverUs
                                  ? absl::InfiniteFuture()
                                  : MonotonicNow() + absl::Microseconds(static_cast<int64_t>(timeout_us));
  const Handler* handler = service_->Find(message.header.method());
  memory_->Hold(message.bytes.size() + kCallOverhead);
  auto call = std::make_shared<Call>(shared_from_this(), number, std::move(*message.header.mutable_method()),
                                     std::move(message.bytes), deadline);
  {
    absl::MutexLock lock(&mutex_);
    if (client_gone_) {
      call->Cancel();  // no hook is set yet
    } else {
      calls_.emplace(number, call.get());
    }
  }
  (*handler)(std::move(call));
}

void GrpcServerStream::CancelCall(uint64_t number) {
  memory_->NoteHandled(assembler_.Drop(number));
  CountPartial();
  CancelHook::Hook hook;
  std::deque<FrameQueue::OutgoingMessage> unsent;  // destroyed without the lock
  {
    absl::MutexLock lock(&mutex_);
    queue_out_.Drop(number, &unsent);
    const auto found = calls_.find(number);
    if (found == calls_.end()) return;
    hook = found->second->Cancel();
    calls_.erase(found);
  }
  if (hook) std::move(hook)();
}

std::vector<CancelHook::Hook> GrpcServerStream::CancelAll() {
  std::vector<CancelHook::Hook> hooks;
  for (const auto& [number, call] : calls_) {
    if (CancelHook::Hook hook = call->Cancel()) hooks.push_back(std::move(hook));
  }
  calls_.clear();
  return hooks;
}

void GrpcServerStream::Respond(uint64_t number, absl::StatusOr<Bytes> response) {
  mutex_.Lock();
  // The stream may then be over and the service destroyed.
  if (calls_.erase(number) == 0) {
    mutex_.Unlock();
    return;
  }
  const size_t limit = service_->options().max_message_bytes;
  if (response.ok() && response->size() > limit) response = TooLarge(response->size(), limit);
  Enqueue(number, std::move(response));
  Proceed();
}

void GrpcServerStream::Respond(uint64_t number, std::unique_ptr<ResponseSource> response) {
  mutex_.Lock();
  if (calls_.erase(number) == 0) {
    mutex_.Unlock();
    return;
  }
  const size_t limit = service_->options().max_message_bytes;
  if (response->size() > limit) {
    Enqueue(number, TooLarge(response->size(), limit));
  } else {
    v1::StreamFrame header;
    header.set_call(number);
    queue_out_.Add(std::move(header), std::move(response));
  }
  Proceed();
}

void GrpcServerStream::Enqueue(uint64_t number, absl::StatusOr<Bytes> response) {
  v1::StreamFrame header;
  header.set_call(number);
  if (response.ok()) {
    queue_out_.Add(std::move(header), *std::move(response));
    return;
  }
  header.set_code(static_cast<uint32_t>(response.status().raw_code()));
  absl::string_view text = response.status().message();
  if (text.size() > kMaxErrorBytes) {
    header.set_error(
        absl::StrCat(text.substr(0, kMaxErrorBytes - 64), "... (cut; ", text.size(), " bytes in all)"));
  } else {
    header.set_error(text.data(), text.size());
  }
  queue_out_.Add(std::move(header), Bytes());
}

void GrpcServerStream::OnWritten(bool ok) {
  std::vector<CancelHook::Hook> hooks;
  std::deque<FrameQueue::OutgoingMessage> unsent;
  memory_->NoteSent();
  mutex_.Lock();
  writing_ = false;
  if (!ok) {
    client_gone_ = true;
    unsent = queue_out_.Clear();
    hooks = CancelAll();
  }
  Proceed();
  for (CancelHook::Hook& hook : hooks) std::move(hook)();
  if (handled_frames_ < incoming_frames_.size()) TakeAll();
  EndOperation();
}

void GrpcServerStream::OnFinished(bool ok) { EndOperation(); }

void GrpcServerStream::OnDone(bool ok) {
  mutex_.Lock();
  client_gone_ = true;
  const std::deque<FrameQueue::OutgoingMessage> unsent = queue_out_.Clear();
  std::vector<CancelHook::Hook> hooks = CancelAll();
  mutex_.Unlock();
  for (CancelHook::Hook& hook : hooks) std::move(hook)();
  EndOperation();
}

void GrpcServerStream::EndOperation() {
  {
    absl::MutexLock lock(&mutex_);
    if (--operations_ > 0) return;
  }
  if (partial_bytes_ > 0) memory_->Release(std::exchange(partial_bytes_, 0));
  rpc_.reset();
  service_->Remove(shared_from_this());
}

}  // namespace tandem::rpc
