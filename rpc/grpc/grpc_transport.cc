#include "rpc/grpc/grpc_transport.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/status.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/channel_arguments.h"
#include "rpc/address.h"
#include "rpc/channel.h"
#include "rpc/grpc/grpc_bytes.h"
#include "rpc/grpc/grpc_library.h"
#include "rpc/grpc/grpc_status.h"
#include "rpc/retry/retrying_channel.h"

namespace tandem::rpc {
namespace {

class GrpcAttempt : public Attempt, public std::enable_shared_from_this<GrpcAttempt> {
 public:
  GrpcAttempt(grpc::GenericStub* stub, const std::string& method, const Bytes& request, absl::Time deadline)
      : stub_(stub), method_(method), request_(ToByteBuffer(request)) {
    context_.emplace();
    context_->set_deadline(absl::ToChronoTime(deadline));
  }

  void Start(Channel::Done done) override {
    grpc::ClientContext* context;
    {
      absl::MutexLock lock(&mutex_);
      done_ = std::move(done);
      context = &*context_;
    }
    stub_->UnaryCall(context, method_, {}, &request_, &response_,
                     [self = shared_from_this()](const grpc::Status& status) { self->OnDone(status); });
  }

  void Cancel() override {
    absl::MutexLock lock(&mutex_);
    if (context_.has_value()) context_->TryCancel();
  }

 private:
  void OnDone(const grpc::Status& status) {
    Channel::Done done;
    {
      // The context holds a reference to the gRPC channel. It must be gone before `done` lets the channel's
      // destructor proceed: the last reference joins gRPC's threads, of which this is one.
      absl::MutexLock lock(&mutex_);
      context_.reset();
      done = std::move(done_);
    }
    request_.Clear();
    absl::StatusOr<Bytes> result;
    if (status.ok()) {
      result = FromByteBuffer(response_);
    } else {
      result = FromGrpcStatus(status);
    }
    response_.Clear();
    std::move(done)(std::move(result));
  }

  grpc::GenericStub* const stub_;
  const std::string& method_;
  grpc::ByteBuffer request_;
  grpc::ByteBuffer response_;
  absl::Mutex mutex_;
  std::optional<grpc::ClientContext> context_ ABSL_GUARDED_BY(mutex_);  // empty once the attempt is over
  Channel::Done done_ ABSL_GUARDED_BY(mutex_);
};

class GrpcTransport : public Transport {
 public:
  GrpcTransport(std::shared_ptr<grpc::Channel> channel, bool unix)
      : channel_(channel), stub_(std::move(channel)), unix_(unix) {}

  std::shared_ptr<Attempt> NewAttempt(const std::string& method, const Bytes& request, absl::Time deadline,
                                      int failures) override {
    // The call's own backoff decides when to try again; gRPC's would make it wait on top, up to minutes for a
    // name that did not resolve.
    if (failures > 0) grpc::experimental::ChannelResetConnectionBackoff(channel_.get());
    return std::make_shared<GrpcAttempt>(&stub_, method, request, deadline);
  }
  absl::string_view name() const override { return unix_ ? "unix" : "tcp"; }

 private:
  std::shared_ptr<grpc::Channel> channel_;
  grpc::GenericStub stub_;
  const bool unix_;
};

int ClampToInt(size_t value) {
  return static_cast<int>(std::min<size_t>(value, std::numeric_limits<int>::max()));
}

int Millis(absl::Duration duration) {
  return ClampToInt(std::max<int64_t>(1, absl::ToInt64Milliseconds(duration)));
}

grpc::ChannelArguments Arguments(const ChannelOptions& options) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(ClampToInt(options.max_message_bytes));
  arguments.SetMaxSendMessageSize(-1);  // checked before the call starts, with a message that says more
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, Millis(options.keepalive_time));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, Millis(options.keepalive_timeout));
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);  // keepalive goes on while a call is parked
  // A server that is just starting, or restarting, is found within a second.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, 500);
  // One connection per channel, whose state no other channel of the process shares.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);  // parameter traffic never leaves through a web proxy
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);     // retries are ours: only what is declared idempotent
  // Throughput of large messages over one connection.
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 64 << 20);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 1 << 20);
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
  KeepGrpcLibrary();
  // "dns:///" keeps gRPC from taking the host for a URI scheme; it also takes IP addresses as they are.
  const std::string uri = address.is_unix() ? target : absl::StrCat("dns:///", target);
  return std::make_unique<GrpcTransport>(
      grpc::CreateCustomChannel(uri, grpc::InsecureChannelCredentials(), Arguments(options)),
      address.is_unix());
}

absl::StatusOr<std::unique_ptr<Channel>> ConnectGrpc(const std::string& target,
                                                     const ChannelOptions& options) {
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<Transport> transport, MakeGrpcTransport(target, options));
  return MakeRetryingChannel(target, std::move(transport), std::make_unique<TimerQueue>(),
                             options.max_message_bytes);
}

}  // namespace tandem::rpc
