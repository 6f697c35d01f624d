#ifndef TANDEM_RPC_GRPC_SERVER_GRPC_SERVER_STREAM_H_
#define TANDEM_RPC_GRPC_SERVER_GRPC_SERVER_STREAM_H_

// For rpc/grpc only: the server's end of /tandem.v1.Data/Stream.

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/bytes.h"
#include "grpcpp/completion_queue.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/async_stream.h"
#include "rpc/cancel_hook.h"
#include "rpc/grpc/completion_loop.h"
#include "rpc/grpc/server/stream_service.h"
#include "rpc/service.h"
#include "rpc/wire/batch.h"
#include "rpc/wire/frame.h"
#include "rpc/wire/frame_queue.h"
#include "rpc/wire/response_source.h"

namespace tandem::rpc {

// One connection's stream. Its calls hold it too, and may outlive its end: then their answers go nowhere.
class GrpcServerStream : public std::enable_shared_from_this<GrpcServerStream> {
 public:
  // `queue` is the queue of `loop`, which outlives the stream's operations.
  GrpcServerStream(StreamService* service, CompletionLoop* loop, grpc::ServerCompletionQueue* queue)
      : service_(service), loop_(loop), queue_(queue), assembler_(service->requests()) {}

  // Waits for a client.
  void Accept();
  void Drain();

 private:
  class Call;

  // Operations with gRPC; they end with the object's last one.
  struct Rpc {
    Rpc()
        : stream(&context) {}  // here, as Clang has no default of a member until the class around is complete
    grpc::ServerContext context;
    grpc::ServerAsyncReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer> stream;
  };

  void OnAccepted(bool ok);
  void OnRead(bool ok);
  void OnWritten(bool ok);
  void OnFinished(bool ok);
  void OnDone(bool ok);

  // Handles the frames that came. When answers wait for a client that does not read them, only some:
  // OnWritten goes on.
  void TakeAll();
  absl::Status Take(Frame frame);
  // The stream must end at once.
  void Break(const absl::Status& why);
  // Null: go on. Else what the call that begins with `frame` is answered at once.
  absl::Status Admit(const Frame& frame);
  void Run(MessageAssembler::Message message);
  void CancelCall(uint64_t number);
  // The hooks are for the caller to run once the lock is free.
  std::vector<CancelHook::Hook> CancelAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // An answer. Nothing happens when the call is over.
  void Response(uint64_t number, absl::StatusOr<Bytes> response);
  void Response(uint64_t number, std::unique_ptr<ResponseSource> response);
  void Enqueue(uint64_t number, absl::StatusOr<Bytes> response) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool ResponsesPending() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Does what can be done now: writes the next frame, or ends the stream; reads on. Releases the lock, also
  // for a while in between: whoever writes makes the frame under none.
  void Proceed() ABSL_UNLOCK_FUNCTION(mutex_);
  void EndOperation();

  StreamService* const service_;
  CompletionLoop* const loop_;
  grpc::ServerCompletionQueue* const queue_;
  std::optional<Rpc> rpc_;  // while operations_ > 0
  std::string peer_;
  Caller caller_;  // of all its calls

  // Of the loop's thread.
  grpc::ByteBuffer incoming_;
  Frames came_;  // with the last message, and those before taken_ are handled
  size_t taken_ = 0;
  MessageAssembler assembler_;
  uint64_t last_number_ = 0;

  std::atomic<size_t> held_bytes_{0};  // requests that handlers have; only the loop's thread adds

  MemberTag<GrpcServerStream> accepted_tag_{this, &GrpcServerStream::OnAccepted};
  MemberTag<GrpcServerStream> read_tag_{this, &GrpcServerStream::OnRead};
  MemberTag<GrpcServerStream> written_tag_{this, &GrpcServerStream::OnWritten};
  MemberTag<GrpcServerStream> finished_tag_{this, &GrpcServerStream::OnFinished};
  MemberTag<GrpcServerStream> done_tag_{this, &GrpcServerStream::OnDone};

  absl::Mutex mutex_;
  // Unanswered calls. A call takes itself out before it goes.
  absl::flat_hash_map<uint64_t, Call*> calls_ ABSL_GUARDED_BY(mutex_);
  FrameQueue queue_out_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool reading_ ABSL_GUARDED_BY(mutex_) =
      false;  // a read is under way, or what it brought is not all handled
  bool accepted_ ABSL_GUARDED_BY(mutex_) = false;
  bool handling_ ABSL_GUARDED_BY(mutex_) = false;  // frames, in this moment or when answers have gone out
  // Handles several frames: the answers that it gives meanwhile go together.
  std::thread::id holder_ ABSL_GUARDED_BY(mutex_);
  bool batches_ ABSL_GUARDED_BY(mutex_) = false;      // the client takes them
  bool half_closed_ ABSL_GUARDED_BY(mutex_) = false;  // the client sends no more
  bool finishing_ ABSL_GUARDED_BY(mutex_) = false;
  bool gone_ ABSL_GUARDED_BY(mutex_) = false;                   // nobody reads answers any more
  std::optional<grpc::Status> broken_ ABSL_GUARDED_BY(mutex_);  // why the stream must end at once
  int operations_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_GRPC_SERVER_GRPC_SERVER_STREAM_H_
