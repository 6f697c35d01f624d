// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_GRPC_CLIENT_GRPC_CLIENT_STREAM_H_
#define TANDEM_RPC_GRPC_CLIENT_GRPC_CLIENT_STREAM_H_

// The client end of /tandem.v1.Data/Stream. Only used in rpc/grpc.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/bytes.h"
#include "grpcpp/client_context.h"
#include "grpcpp/generic/generic_stub.h"
#include "rpc/grpc/completion_loop.h"
#include "rpc/transport/timer_queue.h"
#include "rpc/wire/frame.h"
#include "rpc/wire/frame_queue.h"

namespace tandem::rpc {

// A call on a stream, as the stream uses it. Its functions run on the loop's thread, without locks.
class StreamedCall {
 public:
  virtual ~StreamedCall() = default;
  // Ends the call with its response or an error. May be called twice (the call's own cancellation, and a
  // response that arrived at the same time); the first one counts.
  virtual void OnResponse(absl::StatusOr<Bytes> response) = 0;
  // Returns true if the chunks of a long response should be passed to OnChunk as they arrive. OnResponse then
  // gets an empty response.
  virtual bool WantsChunks() const = 0;
  virtual void OnChunk(uint64_t offset, uint64_t total, Bytes chunk) = 0;
  // Ends the call: the server does not support the stream, and has not received the call.
  virtual void OnNoStream() = 0;
};

// One stream, from its opening to its end. After the end, the transport opens another one. Thread-safe. The
// stream keeps itself alive until its last operation has ended.
//
// The thread that starts a call writes the call's first bytes. The loop's thread writes the rest and handles
// all responses. One lock guards the state. It is held for a few instructions, and never while calling gRPC
// or a call's own code.
class GrpcClientStream : public std::enable_shared_from_this<GrpcClientStream> {
 public:
  // `on_over` runs last, without locks, when gRPC holds no reference to the stream any more. `loop` must
  // outlive that. `timers`, which ends calls at their deadlines, must outlive the stream's last call.
  GrpcClientStream(CompletionLoop* loop, TimerQueue* timers, size_t max_message_bytes,
                   absl::AnyInvocable<void() &&> on_over)
      : loop_(loop), timers_(timers), max_message_bytes_(max_message_bytes), on_over_(std::move(on_over)) {}

  // Opens the stream. Called once, before anything else, and must be followed by a Send. `caller` is
  // Caller::ToBytes.
  void Open(grpc::GenericStub* stub, const std::string& caller);

  // Sends a call and returns its number. Returns 0, and sends nothing, if the stream has ended. At `deadline`
  // the call gets DeadlineExceeded.
  uint64_t Send(std::shared_ptr<StreamedCall> call, const std::string& method, const Bytes& request,
                absl::Time deadline);
  // Cancels call `number`. A response that is being delivered may still reach it.
  void Forget(uint64_t number);
  // Ends the stream. All its calls get an error.
  void Cancel();

 private:
  struct Pending {
    std::shared_ptr<StreamedCall> call;
    absl::Time deadline;
  };

  void OnRead(bool ok);
  void OnWritten(bool ok);
  void OnFinished(bool ok);
  // Ends the calls whose deadline has passed, on the thread of timers_.
  void OnAlarm(absl::Time when);

  // Handles all frames of a message.
  absl::Status TakeAll(const Bytes& wire);
  absl::Status Take(Frame frame);
  // Ends the stream because of an error found on this side.
  void Break(absl::Status why);
  // Writes the next frame unless one is being written. Releases the lock.
  void WriteNext() ABSL_UNLOCK_FUNCTION(mutex_);
  void Arm(absl::Time when) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SendCancel(uint64_t number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Releases an ended operation; the last one ends the object.
  void EndOperation();

  CompletionLoop* const loop_;
  // Not gRPC's own alarms: gRPC 1.51 sleeps until them by the wall clock, so that they ring late after the
  // clock is set back.
  TimerQueue* const timers_;
  const size_t max_message_bytes_;
  absl::AnyInvocable<void() &&> on_over_;

  // These exist while operations_ > 0.
  std::optional<grpc::ClientContext> context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
  // These belong to the loop's thread.
  grpc::ByteBuffer incoming_;
  grpc::Status end_;
  MessageAssembler assembler_;
  bool received_frame_ = false;  // the server has sent a frame

  MemberTag<GrpcClientStream> read_tag_{this, &GrpcClientStream::OnRead};
  MemberTag<GrpcClientStream> written_tag_{this, &GrpcClientStream::OnWritten};
  MemberTag<GrpcClientStream> finished_tag_{this, &GrpcClientStream::OnFinished};

  absl::Mutex mutex_;
  absl::flat_hash_map<uint64_t, Pending> calls_ ABSL_GUARDED_BY(mutex_);
  FrameQueue queue_ ABSL_GUARDED_BY(mutex_);
  // Calls cancelled since the last frame; their unfinished responses can be discarded.
  std::vector<uint64_t> forgotten_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_number_ ABSL_GUARDED_BY(mutex_) = 0;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool batches_ ABSL_GUARDED_BY(mutex_) = false;  // the server accepts them
  // The thread that is delivering several responses. Calls which it starts meanwhile are sent together.
  std::thread::id batching_thread_ ABSL_GUARDED_BY(mutex_);
  bool over_ ABSL_GUARDED_BY(mutex_) = false;    // accepts no more calls
  absl::Status broken_ ABSL_GUARDED_BY(mutex_);  // the error found on this side that ended the stream
  // The earliest deadline for which an alarm is set. Alarms are not moved when calls end: if all calls have
  // the same timeout, the stream sets one alarm per timeout, not one per call.
  absl::Time armed_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  int operations_ ABSL_GUARDED_BY(mutex_) = 0;
  std::shared_ptr<GrpcClientStream> self_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_GRPC_CLIENT_GRPC_CLIENT_STREAM_H_
