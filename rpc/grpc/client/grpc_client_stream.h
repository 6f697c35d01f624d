#ifndef TANDEM_RPC_GRPC_CLIENT_GRPC_CLIENT_STREAM_H_
#define TANDEM_RPC_GRPC_CLIENT_GRPC_CLIENT_STREAM_H_

// For rpc/grpc only: the client's end of /tandem.v1.Data/Stream.

#include <cstdint>
#include <list>
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
#include "grpcpp/alarm.h"
#include "grpcpp/client_context.h"
#include "grpcpp/generic/generic_stub.h"
#include "rpc/grpc/completion_loop.h"
#include "rpc/wire/frame.h"
#include "rpc/wire/frame_queue.h"

namespace tandem::rpc {

// A call on a stream, as the stream sees it. Told on the loop's thread, under no lock.
class StreamedCall {
 public:
  virtual ~StreamedCall() = default;
  // The answer, or why there is none. A call may hear of two ends (its own cancellation and an answer that
  // was on its way): the first counts.
  virtual void OnResponse(absl::StatusOr<Bytes> response) = 0;
  // Whether it wants the pieces of a long answer as they come; the answer is then told to be empty.
  virtual bool WantsChunks() const = 0;
  virtual void OnChunk(uint64_t offset, uint64_t total, Bytes chunk) = 0;
  // The server has no such stream, and has not seen the call.
  virtual void OnNoStream() = 0;
};

// One stream, from its opening to its end; then the transport opens another. Thread-safe. Keeps itself alive
// until its last operation is over.
//
// A call's first bytes are written by the thread that starts the call, the rest and all answers are handled
// by the loop's. One lock, held for a few instructions and never across gRPC (but to set an alarm) or a
// call's own code, guards the state.
class GrpcClientStream : public std::enable_shared_from_this<GrpcClientStream> {
 public:
  // `on_over` runs last of all, under no lock, when gRPC holds nothing of the stream any more. `loop`
  // outlives that.
  GrpcClientStream(CompletionLoop* loop, size_t max_message_bytes, absl::AnyInvocable<void() &&> on_over)
      : loop_(loop), max_message_bytes_(max_message_bytes), on_over_(std::move(on_over)) {}

  // Once, before anything else; a call must follow. `caller`: Caller::ToBytes.
  void Open(grpc::GenericStub* stub, const std::string& caller);

  // Sends a call; its number, or 0 when the stream has ended and took nothing. The call is told
  // DeadlineExceeded at `deadline`.
  uint64_t Send(std::shared_ptr<StreamedCall> call, const std::string& method, const Bytes& request,
                absl::Time deadline);
  // The caller does not wait for `number` any more. It may still hear of an answer that is being delivered.
  void Forget(uint64_t number);
  // Ends the stream; its calls are told.
  void Cancel();

 private:
  struct Pending {
    std::shared_ptr<StreamedCall> call;
    absl::Time deadline;
  };
  // Looks for calls whose deadline has passed.
  struct DeadlineAlarm final : public CompletionTag {
    void OnEvent(bool ok) override;
    std::shared_ptr<GrpcClientStream> stream;
    absl::Time when;
    grpc::Alarm alarm;
    std::list<std::unique_ptr<DeadlineAlarm>>::iterator self;
  };

  void OnRead(bool ok);
  void OnWritten(bool ok);
  void OnFinished(bool ok);
  void OnAlarm(std::list<std::unique_ptr<DeadlineAlarm>>::iterator alarm, bool ok);

  // All frames of a message.
  absl::Status TakeAll(const Bytes& wire);
  absl::Status Take(Frame frame);
  // Ends the stream for a reason of our own.
  void Break(absl::Status why);
  // Writes what is next unless something is being written. Releases the lock.
  void WriteNext() ABSL_UNLOCK_FUNCTION(mutex_);
  void Arm(absl::Time when) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SendCancel(uint64_t number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Gives back an operation that has ended; the last one ends the object.
  void EndOperation();

  CompletionLoop* const loop_;
  const size_t max_message_bytes_;
  absl::AnyInvocable<void() &&> on_over_;

  // While operations_ > 0.
  std::optional<grpc::ClientContext> context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
  // Of the loop's thread.
  grpc::ByteBuffer incoming_;
  grpc::Status end_;
  MessageAssembler assembler_;
  bool heard_ = false;  // a frame of the server

  MemberTag<GrpcClientStream> read_tag_{this, &GrpcClientStream::OnRead};
  MemberTag<GrpcClientStream> written_tag_{this, &GrpcClientStream::OnWritten};
  MemberTag<GrpcClientStream> finished_tag_{this, &GrpcClientStream::OnFinished};

  absl::Mutex mutex_;
  absl::flat_hash_map<uint64_t, Pending> calls_ ABSL_GUARDED_BY(mutex_);
  FrameQueue queue_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint64_t> forgotten_
      ABSL_GUARDED_BY(mutex_);  // since the last frame: nothing of them need be kept
  uint64_t last_number_ ABSL_GUARDED_BY(mutex_) = 0;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool batches_ ABSL_GUARDED_BY(mutex_) = false;  // the server takes them
  // Delivers several answers: the calls that this leads to go together.
  std::thread::id holder_ ABSL_GUARDED_BY(mutex_);
  bool over_ ABSL_GUARDED_BY(mutex_) = false;    // takes no more calls
  absl::Status broken_ ABSL_GUARDED_BY(mutex_);  // why we ended it ourselves
  // Earliest deadline that an alarm is set for. Alarms are not moved when calls are answered: a stream whose
  // calls all have the same timeout sets one in that time, not one a call.
  absl::Time armed_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  std::list<std::unique_ptr<DeadlineAlarm>> alarms_ ABSL_GUARDED_BY(mutex_);
  int operations_ ABSL_GUARDED_BY(mutex_) = 0;
  std::shared_ptr<GrpcClientStream> self_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_GRPC_CLIENT_GRPC_CLIENT_STREAM_H_
