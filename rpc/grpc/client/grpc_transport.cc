// SPDX-License-Identifier: Apache-2.0
#include "rpc/grpc/client/grpc_transport.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/logging.h"
#include "base/status.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/channel_arguments.h"
#include "rpc/address.h"
#include "rpc/channel.h"
#include "rpc/grpc/caller_metadata.h"
#include "rpc/grpc/client/connection_watch.h"
#include "rpc/grpc/client/grpc_client_stream.h"
#include "rpc/grpc/completion_loop.h"
#include "rpc/grpc/grpc_bytes.h"
#include "rpc/grpc/grpc_library.h"
#include "rpc/grpc/grpc_status.h"
#include "rpc/grpc/grpc_time.h"
#include "rpc/grpc/tls_credentials.h"
#include "rpc/grpc/unix_buffers.h"
#include "rpc/security/job_key.h"
#include "rpc/security/transport_security.h"
#include "rpc/transport/retrying_channel.h"
#include "rpc/transport/timer_queue.h"
#include "rpc/wire/frame.h"

namespace tandem::rpc {
namespace {

class GrpcTransport;

// One attempt at a call: on the channel's stream, or as a gRPC call of its own if the server does not support
// the stream.
class GrpcAttempt : public Attempt, public StreamedCall, public std::enable_shared_from_this<GrpcAttempt> {
 public:
  GrpcAttempt(GrpcTransport* transport, const std::string& method, const Bytes& request, absl::Time deadline)
      : transport_(transport), method_(method), request_(request), deadline_(deadline) {}

  void Start(Channel::Done done) override;
  void Cancel() override;

  void SetSink(std::shared_ptr<ResponseSink> sink) override { sink_ = std::move(sink); }

  void OnResponse(absl::StatusOr<Bytes> response) override { Complete(std::move(response)); }
  bool WantsChunks() const override { return sink_ != nullptr; }
  void OnChunk(uint64_t offset, uint64_t total, Bytes chunk) override {
    // Waits for a thread that is ending the call; after `done` no thread does.
    absl::MutexLock lock(&mutex_);
    if (done_) sink_->OnChunk(offset, total, std::move(chunk));
  }
  void OnNoStream() override;

 private:
  // A gRPC call of its own.
  struct Unary final : public CompletionTag {
    void OnEvent(bool ok) override { std::exchange(attempt, nullptr)->OnUnaryDone(); }
    std::shared_ptr<GrpcAttempt> attempt;
    grpc::ClientContext context;
    grpc::ByteBuffer response;
    grpc::Status status;
    std::unique_ptr<grpc::GenericClientAsyncResponseReader> reader;
  };

  void StartUnary();
  void OnUnaryDeadline();
  void OnUnaryDone();
  // Ends the attempt. Only the first result counts.
  void Complete(absl::StatusOr<Bytes> result);

  GrpcTransport* const transport_;
  const std::string& method_;
  const Bytes& request_;
  const absl::Time deadline_;
  std::shared_ptr<ResponseSink> sink_;  // set before Start

  absl::Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  Channel::Done done_ ABSL_GUARDED_BY(mutex_);  // empty before Start and once it has run
  std::shared_ptr<GrpcClientStream> stream_ ABSL_GUARDED_BY(mutex_);
  uint64_t number_ ABSL_GUARDED_BY(mutex_) = 0;  // its number on the stream
  std::optional<Unary> unary_ ABSL_GUARDED_BY(mutex_);
  std::optional<TimerQueue::Id> unary_timer_ ABSL_GUARDED_BY(mutex_);
  bool unary_expired_ ABSL_GUARDED_BY(mutex_) = false;
};

absl::Status Annotated(const absl::Status& error, absl::StatusCode code, absl::string_view advice) {
  return absl::Status(code, absl::StrCat(advice, " (", error.message(), ")"));
}

class GrpcTransport : public Transport {
 public:
  GrpcTransport(std::shared_ptr<grpc::Channel> channel, const std::string& target, bool unix,
                const ChannelOptions& options, const Caller& caller, Credential credential)
      : channel_(channel),
        stub_(std::move(channel)),
        target_(target),
        unix_(unix),
        tls_(!unix && !TrustedNetwork()),
        max_message_bytes_(options.max_message_bytes),
        caller_(caller.ToBytes()),
        credential_(std::move(credential)),
        loop_(std::make_shared<CompletionLoop>(std::make_unique<grpc::CompletionQueue>())),
        watch_(std::in_place, &stub_, loop_.get()),
        no_stream_(!options.stream) {
    loop_->Start();
  }

  ~GrpcTransport() override {
    std::shared_ptr<GrpcClientStream> stream;
    {
      absl::MutexLock lock(&mutex_);
      stream = std::move(stream_);
    }
    loop_->EndInlinePoll();
    watch_.reset();
    if (stream != nullptr) stream->Cancel();
    {
      absl::MutexLock lock(&mutex_);
      const auto none = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return streams_ == 0; };
      mutex_.Await(absl::Condition(&none));
    }
    timers_.Stop();
    loop_->Stop();
  }
  void PrepareInlinePoll() override { loop_->PrepareInlinePoll(); }
  void InlinePoll(absl::FunctionRef<bool()> over, absl::Time deadline) override {
    // The transport may be destroyed in the meantime.
    const std::shared_ptr<CompletionLoop> loop = loop_;
    loop->InlinePoll(over, deadline);
  }

  std::shared_ptr<Attempt> NewAttempt(const std::string& method, const Bytes& request, absl::Time deadline,
                                      int failures) override {
    // The caller's own backoff decides when to retry. gRPC's backoff would add to it, up to minutes for a
    // name that did not resolve.
    if (failures > 0) {
      grpc::experimental::ChannelResetConnectionBackoff(channel_.get());
      watch_->Look();
    }
    return std::make_shared<GrpcAttempt>(this, method, request, deadline);
  }
  absl::string_view name() const override { return unix_ ? "unix" : "tcp"; }

  // Returns the stream for a call of `method`, or nullptr if it must be a gRPC call of its own.
  std::shared_ptr<GrpcClientStream> StreamFor(absl::string_view method) {
    // Health checking and reflection are gRPC services, which the stream does not support.
    if (absl::StartsWith(method, "/grpc.")) return nullptr;
    absl::MutexLock lock(&mutex_);
    if (no_stream_) return nullptr;
    if (stream_ == nullptr) {
      ++streams_;
      stream_ = std::make_shared<GrpcClientStream>(loop_.get(), &timers_, max_message_bytes_, [this] {
        absl::MutexLock lock(&mutex_);
        --streams_;
      });
      stream_->Open(&stub_, caller_);
    }
    return stream_;
  }
  // `stream` has ended; the next call opens another one.
  void Discard(const std::shared_ptr<GrpcClientStream>& stream) {
    std::shared_ptr<GrpcClientStream> old;  // destroyed after the lock is released
    absl::MutexLock lock(&mutex_);
    if (stream_ == stream) old = std::move(stream_);
  }
  void NoteNoStream() {
    absl::MutexLock lock(&mutex_);
    if (no_stream_) return;
    no_stream_ = true;
    LogWarning(absl::StrCat("the server at ", target_, " does not know ", kStreamMethod,
                            ": calls to it go one by one, which is slower"));
  }

  grpc::GenericStub* stub() { return &stub_; }
  CompletionLoop* loop() { return loop_.get(); }
  TimerQueue* timers() { return &timers_; }
  size_t max_message_bytes() const { return max_message_bytes_; }
  const std::string& caller() const { return caller_; }

  // Returns `error` of a call. One of TLS says what to do, and is not Unavailable if no later attempt can end
  // otherwise.
  absl::Status Explain(const absl::Status& error) const {
    if (!absl::IsUnavailable(error) || unix_) return error;
    const absl::string_view message = error.message();
    // The server ends the handshake, and says no more than that.
    if (credential_.grant != nullptr && absl::Now() >= credential_.grant->claims().expires) {
      return Annotated(error, absl::StatusCode::kPermissionDenied,
                       absl::StrCat(credential_.ToString(), ", has expired; ask for another one"));
    }
    if (!tls_) {
      if (!absl::StrContains(message, "Socket closed")) return error;
      return Annotated(error, absl::StatusCode::kUnavailable,
                       "this process connects without TLS (--trusted-network), and the server may expect it");
    }
    if (absl::StrContains(message, "certificate verify failed") ||
        absl::StrContains(message, "alert unknown ca")) {
      if (const absl::StatusOr<CertificateFiles*> files = CertificateFiles::OfProcess();
          files.ok() && *files != nullptr) {
        return Annotated(
            error, absl::StatusCode::kUnavailable,
            absl::StrCat("this process or the server refuses the other's certificate: do ", kTlsCertVariable,
                         " and ", kTlsCaVariable, " (--tls-cert, --tls-ca) of both belong together?"));
      }
      return Annotated(
          error, absl::StatusCode::kPermissionDenied,
          absl::StrCat("the server has another key than this process, which has ", credential_.ToString(),
                       ". `tandem key show` prints a process's key; --key-file or ", kKeyFileVariable,
                       " chooses it"));
    }
    if (absl::StrContains(message, "wrong version number")) {
      return Annotated(error, absl::StatusCode::kPermissionDenied,
                       "what listens there does not speak TLS. It is no server of Tandem, or it was started "
                       "with --trusted-network, which this process then needs as well");
    }
    return error;
  }

 private:
  std::shared_ptr<grpc::Channel> channel_;
  grpc::GenericStub stub_;
  const std::string target_;
  const bool unix_;
  const bool tls_;
  const size_t max_message_bytes_;
  const std::string caller_;  // Caller::ToBytes
  const Credential credential_;
  const std::shared_ptr<CompletionLoop> loop_;
  std::optional<ConnectionWatch> watch_;  // exists until the loop ends
  TimerQueue timers_;                     // ends calls at their deadlines; its thread starts with the first

  absl::Mutex mutex_;
  bool no_stream_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<GrpcClientStream> stream_ ABSL_GUARDED_BY(mutex_);
  int streams_ ABSL_GUARDED_BY(mutex_) = 0;  // streams with operations in progress
};

void GrpcAttempt::Start(Channel::Done done) {
  {
    absl::MutexLock lock(&mutex_);
    done_ = std::move(done);
  }
  transport_->loop()->Begin();
  // gRPC would abort on some of these.
  if (!absl::StartsWith(method_, "/") || !std::all_of(method_.begin(), method_.end(), absl::ascii_isgraph)) {
    return Complete(absl::InvalidArgumentError(
        absl::StrCat("\"", absl::CEscape(method_), "\" is no method; expected /package.Service/Method")));
  }
  while (true) {
    const std::shared_ptr<GrpcClientStream> stream = transport_->StreamFor(method_);
    if (stream == nullptr) return StartUnary();
    const uint64_t number = stream->Send(shared_from_this(), method_, request_, deadline_);
    if (number == 0) {
      transport_->Discard(stream);
      continue;
    }
    absl::MutexLock lock(&mutex_);
    stream_ = stream;
    number_ = number;
    if (!cancelled_) return;
    break;
  }
  Cancel();  // it was cancelled before there was a gRPC call to cancel
}

void GrpcAttempt::OnNoStream() {
  transport_->NoteNoStream();
  StartUnary();
}

void GrpcAttempt::StartUnary() {
  absl::MutexLock lock(&mutex_);
  if (!done_) return;  // cancelled; the objects that this refers to may be destroyed
  Unary& unary = unary_.emplace();
  unary.attempt = shared_from_this();
  unary.context.set_deadline(ToGrpcDeadline(deadline_));
  AddCaller(transport_->caller(), &unary.context);
  if (cancelled_) unary.context.TryCancel();
  unary.reader = transport_->stub()->PrepareUnaryCall(&unary.context, method_, ToByteBuffer(request_),
                                                      transport_->loop()->queue());
  unary.reader->StartCall();
  unary.reader->Finish(&unary.response, &unary.status, unary.tag());
  if (deadline_ == absl::InfiniteFuture()) return;
  // gRPC's own timer comes first, unless the wall clock was set back.
  unary_timer_ = transport_->timers()->Schedule(deadline_ + kGrpcLate, [attempt = weak_from_this()] {
    if (const std::shared_ptr<GrpcAttempt> self = attempt.lock()) self->OnUnaryDeadline();
  });
}

void GrpcAttempt::OnUnaryDeadline() {
  absl::MutexLock lock(&mutex_);
  if (!unary_.has_value()) return;
  unary_expired_ = true;
  unary_->context.TryCancel();
}

void GrpcAttempt::Cancel() {
  std::shared_ptr<GrpcClientStream> stream;
  uint64_t number;
  {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
    if (unary_.has_value()) {
      unary_->context.TryCancel();
      return;
    }
    stream = stream_;
    number = number_;
  }
  if (stream == nullptr) return;
  stream->Forget(number);
  Complete(absl::CancelledError("the call was cancelled"));
}

void GrpcAttempt::OnUnaryDone() {
  absl::StatusOr<Bytes> result;
  {
    // The context holds a reference to the gRPC channel. It must be destroyed before `done` lets the
    // channel's destructor proceed.
    absl::MutexLock lock(&mutex_);
    if (unary_timer_.has_value()) transport_->timers()->Cancel(*unary_timer_);
    if (unary_->status.ok()) {
      result = FromByteBuffer(unary_->response);
    } else if (unary_expired_) {
      result = absl::DeadlineExceededError("the deadline passed without an answer");
    } else {
      result = FromGrpcStatus(unary_->status);
    }
    unary_.reset();
  }
  if (result.ok() && result->size() > transport_->max_message_bytes()) {
    result = absl::ResourceExhaustedError(absl::StrCat(
        "an answer of ", result->size(), " bytes is larger than max_message_bytes of the channel, ",
        transport_->max_message_bytes()));
  }
  Complete(std::move(result));
}

void GrpcAttempt::Complete(absl::StatusOr<Bytes> result) {
  Channel::Done done;
  {
    absl::MutexLock lock(&mutex_);
    done = std::move(done_);
    done_ = nullptr;
  }
  if (!done) return;
  if (!result.ok()) result = transport_->Explain(result.status());
  transport_->loop()->End();  // `done` may lead to the transport's destruction
  std::move(done)(std::move(result));
}

int ClampToInt(size_t value) {
  return static_cast<int>(std::min<size_t>(value, std::numeric_limits<int>::max()));
}

int Millis(absl::Duration duration) {
  return ClampToInt(std::max<int64_t>(1, absl::ToInt64Milliseconds(duration)));
}

grpc::ChannelArguments Arguments(const ChannelOptions& options) {
  grpc::ChannelArguments arguments;
  // Larger responses are refused here, call by call; gRPC would end the whole stream.
  arguments.SetMaxReceiveMessageSize(ClampToInt(std::max(options.max_message_bytes, kMaxFrameBytes)));
  // Checked before the call starts, with a more precise message.
  arguments.SetMaxSendMessageSize(-1);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, Millis(options.keepalive_time));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, Millis(options.keepalive_timeout));
  // Keepalive continues while a call is deferred.
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // A server that is just starting, or restarting, is found within a second.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, 500);
  if (options.connection.empty()) {
    // No other channel of the process shares the connection and its state.
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  } else {
    // gRPC shares a connection among channels whose arguments are equal.
    arguments.SetString("tandem.connection", options.connection);
  }
  // Parameter traffic never passes through a web proxy.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // The channel retries, and only calls that are declared idempotent.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  // Tandem sends nothing compressed, and unpacks nothing.
  arguments.SetInt(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  arguments.SetInt(GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1 << GRPC_COMPRESS_NONE);
  // Throughput of large messages over one connection.
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 64 << 20);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 1 << 20);
  // Data is read in portions that are still in the processor's own cache when rows are copied to their
  // destination.
  arguments.SetInt(GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, kFramePayload);
  WidenUnixSockets(&arguments);
  return arguments;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> MakeGrpcTransport(const std::string& target,
                                                             const ChannelOptions& options) {
  TANDEM_ASSIGN_OR_RETURN(Address address, ParseAddress(target));
  if (!address.is_unix() && address.port == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("bad target \"", target, "\": port 0 is for servers only; name the port to connect to"));
  }
  TANDEM_ASSIGN_OR_RETURN(Credential credential, CredentialOf(options.key));
  const Caller caller = Identified(options.caller, credential);
  TANDEM_RETURN_IF_ERROR(CheckCaller(caller));
  TANDEM_RETURN_IF_ERROR(KeepGrpcLibrary());
  // "dns:///" prevents gRPC from taking the host for a URI scheme. It also accepts IP addresses.
  const std::string uri =
      address.is_unix() ? target : absl::StrCat("dns:///", ResolvableAddress(address, target));
  grpc::ChannelArguments arguments = Arguments(options);
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::ChannelCredentials> credentials,
                          ChannelCredentialsFor(address, credential, &arguments));
  return std::make_unique<GrpcTransport>(grpc::CreateCustomChannel(uri, credentials, arguments), target,
                                         address.is_unix(), options, caller, std::move(credential));
}

absl::StatusOr<std::unique_ptr<Channel>> ConnectGrpc(const std::string& target,
                                                     const ChannelOptions& options) {
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<Transport> transport, MakeGrpcTransport(target, options));
  return MakeRetryingChannel(target, std::move(transport), std::make_unique<TimerQueue>(),
                             options.max_message_bytes, {}, options.max_outstanding_bytes);
}

}  // namespace tandem::rpc
