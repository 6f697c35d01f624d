// SPDX-License-Identifier: Apache-2.0
#include "rpc/grpc/client/grpc_client_stream.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/ticks.h"
#include "rpc/grpc/caller_metadata.h"
#include "rpc/grpc/grpc_bytes.h"
#include "rpc/grpc/grpc_status.h"
#include "rpc/wire/batch.h"

namespace tandem::rpc {
namespace {

// The longest time that calls started while one message's responses are delivered may wait to be sent
// together.
constexpr int64_t kHoldNs = 30'000;

// Returns the error of a call whose stream ended with `status`. Everything that may be a lost connection or a
// server that stops is Unavailable, so that idempotent calls are retried.
absl::Status CallStatus(const grpc::Status& status) {
  switch (status.error_code()) {
    case grpc::StatusCode::OK:
      return absl::UnavailableError("the server closed the connection");
    case grpc::StatusCode::CANCELLED:
    case grpc::StatusCode::UNKNOWN:
    case grpc::StatusCode::INTERNAL:
      return absl::UnavailableError(absl::StrCat("the connection broke: ", status.error_message()));
    default:
      return FromGrpcStatus(status);
  }
}

}  // namespace

void GrpcClientStream::Open(grpc::GenericStub* stub, const std::string& caller) {
  {
    absl::MutexLock lock(&mutex_);
    self_ = shared_from_this();
    operations_ = 1;
  }
  context_.emplace();
  AddCaller(caller, &*context_);
  // The headers go with the first frame: gRPC uses the same memory to send both, one after the other.
  context_->set_initial_metadata_corked(true);
  stream_ = stub->PrepareCall(&*context_, kStreamMethod, loop_->queue());
  stream_->StartCall(nullptr);
  stream_->Read(&incoming_, read_tag_.tag());
}

uint64_t GrpcClientStream::Send(std::shared_ptr<StreamedCall> call, const std::string& method,
                                const Bytes& request, absl::Time deadline) {
  v1::StreamFrame header;
  header.set_method(method);
  if (deadline != absl::InfiniteFuture()) {
    header.set_timeout_us(std::max<int64_t>(1, absl::ToInt64Microseconds(deadline - MonotonicNow())));
  }
  mutex_.Lock();
  if (over_) {
    mutex_.Unlock();
    return 0;
  }
  const uint64_t number = ++last_number_;
  header.set_call(number);
  calls_.emplace(number, Pending{std::move(call), deadline});
  if (deadline < armed_) Arm(deadline);
  queue_.Add(std::move(header), request);
  WriteNext();
  return number;
}

void GrpcClientStream::Forget(uint64_t number) {
  mutex_.Lock();
  if (calls_.erase(number) == 0 || over_) {
    mutex_.Unlock();
    return;
  }
  forgotten_.push_back(number);
  SendCancel(number);
  WriteNext();
}

void GrpcClientStream::SendCancel(uint64_t number) {
  if (queue_.Drop(number) == FrameQueue::Dropped::kUnsent) return;  // the server has not received any of it
  v1::StreamFrame header;
  header.set_call(number);
  header.set_cancel(true);
  queue_.Add(std::move(header), Bytes());
}

void GrpcClientStream::Cancel() {
  {
    absl::MutexLock lock(&mutex_);
    if (operations_ == 0) return;
    ++operations_;
  }
  context_->TryCancel();
  EndOperation();
}

void GrpcClientStream::Break(absl::Status why) {
  {
    absl::MutexLock lock(&mutex_);
    over_ = true;
    if (broken_.ok()) broken_ = std::move(why);
  }
  context_->TryCancel();
}

void GrpcClientStream::WriteNext() {
  if (writing_ || over_ || queue_.empty() || batching_thread_ == std::this_thread::get_id()) {
    mutex_.Unlock();
    return;
  }
  writing_ = true;
  ++operations_;
  const Bytes frame = queue_.Next(batches_);
  mutex_.Unlock();
  loop_->NoteMessage(frame.size());
  stream_->Write(ToByteBuffer(frame), written_tag_.tag());
}

void GrpcClientStream::OnWritten(bool ok) {
  mutex_.Lock();
  writing_ = false;
  if (ok) {
    WriteNext();
  } else {
    over_ = true;  // the calls get their error when reading ends
    mutex_.Unlock();
  }
  EndOperation();
}

void GrpcClientStream::OnRead(bool ok) {
  if (ok) {
    received_frame_ = true;
    const Bytes wire = FromByteBuffer(incoming_);
    incoming_.Clear();
    loop_->NoteMessage(wire.size());
    if (absl::Status taken = TakeAll(wire); !taken.ok()) {
      Break(absl::InternalError(absl::StrCat("the server sent a broken stream: ", taken.message())));
    }
    stream_->Read(&incoming_, read_tag_.tag());
    return;
  }
  {
    absl::MutexLock lock(&mutex_);
    over_ = true;
  }
  stream_->Finish(&end_, finished_tag_.tag());  // continues the operation of the read
}

absl::Status GrpcClientStream::TakeAll(const Bytes& wire) {
  TANDEM_ASSIGN_OR_RETURN(Frames frames, ParseFrames(wire));
  if (frames.size() == 1) return Take(std::move(frames[0]));
  absl::Status taken;
  const auto hold = [this](std::thread::id holder) {
    mutex_.Lock();
    batching_thread_ = holder;
    WriteNext();
  };
  hold(std::this_thread::get_id());
  int64_t begin = SteadyNanoseconds();
  for (size_t i = 0; i < frames.size() && taken.ok(); ++i) {
    taken = Take(std::move(frames[i]));
    if (const int64_t now = SteadyNanoseconds(); now - begin > kHoldNs) {
      hold({});
      hold(std::this_thread::get_id());
      begin = now;
    }
  }
  hold({});
  return taken;
}

absl::Status GrpcClientStream::Take(Frame frame) {
  const uint64_t number = frame.header.call();
  std::shared_ptr<StreamedCall> call;
  {
    absl::MutexLock lock(&mutex_);
    for (const uint64_t forgotten : forgotten_) assembler_.Drop(forgotten);
    forgotten_.clear();
    const auto found = calls_.find(number);
    if (found != calls_.end()) call = found->second.call;
    batches_ = batches_ || frame.header.batches();
    if (call == nullptr && number > last_number_) {
      return absl::InternalError(absl::StrCat("it answered call ", number, ", which was never made"));
    }
  }
  if (call == nullptr) {  // it was cancelled in the meantime
    assembler_.Drop(number);
    return absl::OkStatus();
  }
  const uint64_t total = std::max<uint64_t>(frame.header.message_bytes(), frame.payload.size());
  if (total > max_message_bytes_) {
    Forget(number);
    call->OnResponse(absl::ResourceExhaustedError(
        absl::StrCat("an answer of ", total, " bytes is larger than max_message_bytes of the channel, ",
                     max_message_bytes_)));
    return absl::OkStatus();
  }
  MessageAssembler::ChunkConsumer taker;
  if (call->WantsChunks() && frame.header.code() == 0) {
    taker = [call](uint64_t offset, uint64_t size, Bytes chunk) {
      call->OnChunk(offset, size, std::move(chunk));
    };
  }
  TANDEM_ASSIGN_OR_RETURN(auto message, assembler_.Has(number)
                                            ? assembler_.Continue(std::move(frame))
                                            : assembler_.Begin(std::move(frame), std::move(taker)));
  if (!message.has_value()) return absl::OkStatus();
  const auto code = static_cast<absl::StatusCode>(message->header.code());
  {
    absl::MutexLock lock(&mutex_);
    calls_.erase(number);
    if (code != absl::StatusCode::kOk)
      queue_.Drop(number);  // the server refused it before all of it was sent
  }
  if (code == absl::StatusCode::kOk) {
    call->OnResponse(std::move(message->bytes));
  } else {
    call->OnResponse(absl::Status(code, message->header.error()));
  }
  return absl::OkStatus();
}

void GrpcClientStream::OnFinished(bool ok) {
  absl::flat_hash_map<uint64_t, Pending> calls;
  absl::Status why;
  {
    absl::MutexLock lock(&mutex_);
    over_ = true;
    calls.swap(calls_);
    queue_.Clear();
    why = broken_;
  }
  const bool no_stream = why.ok() && !received_frame_ && end_.error_code() == grpc::StatusCode::UNIMPLEMENTED;
  if (why.ok()) why = CallStatus(end_);
  for (auto& [number, pending] : calls) {
    if (no_stream) {
      pending.call->OnNoStream();
    } else {
      pending.call->OnResponse(why);
    }
  }
  EndOperation();
}

void GrpcClientStream::Arm(absl::Time when) {
  armed_ = when;
  timers_->Schedule(when, [stream = weak_from_this(), when] {
    if (const std::shared_ptr<GrpcClientStream> self = stream.lock()) self->OnAlarm(when);
  });
}

void GrpcClientStream::OnAlarm(absl::Time when) {
  struct Late {
    std::shared_ptr<StreamedCall> call;
    bool unsent;
  };
  std::vector<Late> late;
  size_t queued = 0;
  {
    absl::MutexLock lock(&mutex_);
    if (over_ || operations_ == 0 || when != armed_) return;
    ++operations_;
    const absl::Time now = MonotonicNow();
    absl::Time next = absl::InfiniteFuture();
    queued = queue_.bytes();
    std::vector<uint64_t> numbers;
    for (auto& [number, pending] : calls_) {
      if (pending.deadline <= now) {
        numbers.push_back(number);
      } else {
        next = std::min(next, pending.deadline);
      }
    }
    for (const uint64_t number : numbers) {
      const FrameQueue::Dropped dropped = queue_.Drop(number);
      late.push_back({std::move(calls_.find(number)->second.call), dropped != FrameQueue::Dropped::kNothing});
      calls_.erase(number);
      forgotten_.push_back(number);
      if (dropped != FrameQueue::Dropped::kUnsent) SendCancel(number);
    }
    armed_ = absl::InfiniteFuture();
    if (next != absl::InfiniteFuture()) Arm(next);
  }
  mutex_.Lock();
  WriteNext();
  for (Late& call : late) {
    call.call->OnResponse(absl::DeadlineExceededError(
        call.unsent ? absl::StrCat("the deadline passed before the request was sent: ", queued,
                                   " bytes waited for the connection, or for a server that reads slowly")
                    : std::string("the deadline passed without an answer")));
  }
  EndOperation();
}

void GrpcClientStream::EndOperation() {
  std::shared_ptr<GrpcClientStream> self;
  {
    absl::MutexLock lock(&mutex_);
    if (--operations_ > 0) return;
    self = std::move(self_);
  }
  // The context holds the gRPC channel. It must be destroyed before on_over_ tells the transport that it may
  // be destroyed.
  stream_.reset();
  context_.reset();
  std::move(on_over_)();
}

}  // namespace tandem::rpc
