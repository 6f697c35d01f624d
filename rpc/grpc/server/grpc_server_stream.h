// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_GRPC_SERVER_GRPC_SERVER_STREAM_H_
#define TANDEM_RPC_GRPC_SERVER_GRPC_SERVER_STREAM_H_

// The server end of /tandem.v1.Data/Stream. Only used in rpc/grpc.

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
#include "rpc/grpc/server/request_memory.h"
#include "rpc/grpc/server/stream_service.h"
#include "rpc/service.h"
#include "rpc/wire/batch.h"
#include "rpc/wire/frame.h"
#include "rpc/wire/frame_queue.h"
#include "rpc/wire/response_source.h"

namespace tandem::rpc {

// The stream of one connection. Its calls hold references to it and may outlive its end; their responses are
// then dropped.
class GrpcServerStream : public std::enable_shared_from_this<GrpcServerStream> {
 public:
  // `queue` is the queue of `loop`, which must outlive the stream's operations.
  GrpcServerStream(StreamService* service, CompletionLoop* loop, grpc::ServerCompletionQueue* queue)
      : service_(service), loop_(loop), queue_(queue), assembler_(service->requests()) {}

  // Waits for a client to open the stream.
  void Accept();
  // Ends the stream once its last call has its response; the service is draining.
  void Drain();

 private:
  class Call;

  // The gRPC objects; they exist until the stream's last operation ends.
  struct Rpc {
    // Clang accepts a default member initialiser only once the enclosing class is complete.
    Rpc() : stream(&context) {}
    grpc::ServerContext context;
    grpc::ServerAsyncReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer> stream;
  };

  void OnAccepted(bool ok);
  void OnRead(bool ok);
  void OnWritten(bool ok);
  void OnFinished(bool ok);
  void OnDone(bool ok);

  // Handles the frames that were received. If too many responses wait for a client that does not read them,
  // it stops early and OnWritten continues.
  void TakeAll();
  absl::Status Take(Frame frame);
  // Counts the unfinished messages of assembler_ in memory_.
  void CountPartial();
  // Ends the stream at once because of an error.
  void Break(const absl::Status& why);
  // Returns OK, or the error with which the call that begins with `frame` is refused at once.
  absl::Status Admit(const Frame& frame);
  void Run(MessageAssembler::Message message);
  void CancelCall(uint64_t number);
  // Returns the hooks, which the caller must run after releasing the lock.
  std::vector<CancelHook::Hook> CancelAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Sends the response of a call. No effect if the call is over.
  void Respond(uint64_t number, absl::StatusOr<Bytes> response);
  void Respond(uint64_t number, std::unique_ptr<ResponseSource> response);
  void Enqueue(uint64_t number, absl::StatusOr<Bytes> response) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool ResponsesPending() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Does everything that can be done now: writes the next frame or ends the stream, and reads on. Releases
  // the lock, also temporarily in between, since a frame is built without the lock.
  void Proceed() ABSL_UNLOCK_FUNCTION(mutex_);
  void EndOperation();

  StreamService* const service_;
  CompletionLoop* const loop_;
  grpc::ServerCompletionQueue* const queue_;
  std::optional<Rpc> rpc_;  // exists while operations_ > 0
  std::string peer_;
  Caller caller_;  // of all calls on the stream

  // These belong to the loop's thread.
  grpc::ByteBuffer incoming_;
  // The frames of the last message; those before handled_frames_ have been handled.
  Frames incoming_frames_;
  size_t handled_frames_ = 0;
  MessageAssembler assembler_;
  uint64_t last_number_ = 0;

  // The requests of the stream's connection: those that handlers hold, and those of assembler_. Set when the
  // stream is accepted.
  std::shared_ptr<ConnectionMemory> memory_;
  size_t partial_bytes_ = 0;  // what memory_ counts of assembler_

  MemberTag<GrpcServerStream> accepted_tag_{this, &GrpcServerStream::OnAccepted};
  MemberTag<GrpcServerStream> read_tag_{this, &GrpcServerStream::OnRead};
  MemberTag<GrpcServerStream> written_tag_{this, &GrpcServerStream::OnWritten};
  MemberTag<GrpcServerStream> finished_tag_{this, &GrpcServerStream::OnFinished};
  MemberTag<GrpcServerStream> done_tag_{this, &GrpcServerStream::OnDone};

  absl::Mutex mutex_;
  // Unfinished calls. A call removes itself before it is destroyed.
  absl::flat_hash_map<uint64_t, Call*> calls_ ABSL_GUARDED_BY(mutex_);
  FrameQueue queue_out_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  // A read is in progress, or the frames that it returned have not all been handled.
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool accepted_ ABSL_GUARDED_BY(mutex_) = false;
  // Frames are being handled, or the rest of them waits until responses have been sent.
  bool handling_ ABSL_GUARDED_BY(mutex_) = false;
  // The thread that is handling several frames. Responses which it gives meanwhile are sent together.
  std::thread::id batching_thread_ ABSL_GUARDED_BY(mutex_);
  bool batches_ ABSL_GUARDED_BY(mutex_) = false;      // the client accepts them
  bool half_closed_ ABSL_GUARDED_BY(mutex_) = false;  // the client sends no more
  bool finishing_ ABSL_GUARDED_BY(mutex_) = false;
  bool client_gone_ ABSL_GUARDED_BY(mutex_) = false;  // the client does not read responses any more
  // The error with which the stream must end at once.
  std::optional<grpc::Status> broken_ ABSL_GUARDED_BY(mutex_);
  int operations_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_GRPC_SERVER_GRPC_SERVER_STREAM_H_
