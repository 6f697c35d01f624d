// SPDX-License-Identifier: Apache-2.0
#include "rpc/grpc/client/generic_grpc_client.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/timed_wait.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/channel_arguments.h"
#include "grpcpp/support/client_callback.h"
#include "rpc/address.h"
#include "rpc/grpc/grpc_bytes.h"
#include "rpc/grpc/grpc_library.h"
#include "rpc/grpc/grpc_status.h"
#include "rpc/grpc/grpc_time.h"

namespace tandem::rpc {
namespace {

// How long a call waits for a connection that failed before.
constexpr absl::Duration kReconnect = absl::Milliseconds(200);
void AddHeaders(const Headers& headers, grpc::ClientContext* context) {
  for (const auto& [name, value] : headers) context->AddMetadata(name, value);
}

std::string ToText(const grpc::ByteBuffer& buffer) { return FromByteBuffer(buffer).Flatten(); }

class Stream final : public ResponseStream,
                     public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  Stream(grpc::GenericStub* stub, const std::string& method, const std::string& request,
         const Headers& headers, std::function<void(std::string)> on_response,
         std::function<void(absl::Status)> on_end)
      : on_response_(std::move(on_response)),
        on_end_(std::move(on_end)),
        request_(ToByteBuffer(Bytes(request))) {
    AddHeaders(headers, &context_);
    stub->PrepareBidiStreamingCall(&context_, method, {}, this);
    StartWrite(&request_);
    StartRead(&response_);
    StartCall();
  }

  ~Stream() override {
    {
      absl::MutexLock lock(&mutex_);
      silent_ = true;
    }
    context_.TryCancel();
    done_.WaitForNotification();
    absl::MutexLock lock(&mutex_);  // waits until OnDone has left its critical section
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;  // OnDone reports why
    {
      absl::MutexLock lock(&mutex_);
      if (!silent_) on_response_(ToText(response_));
    }
    response_.Clear();
    StartRead(&response_);
  }

  void OnDone(const grpc::Status& status) override {
    absl::MutexLock lock(&mutex_);
    if (!silent_) {
      on_end_(status.ok() ? absl::UnavailableError("the server has ended the stream")
                          : FromGrpcStatus(status));
    }
    done_.Notify();
  }

 private:
  const std::function<void(std::string)> on_response_;
  const std::function<void(absl::Status)> on_end_;
  const grpc::ByteBuffer request_;
  grpc::ByteBuffer response_;
  grpc::ClientContext context_;
  absl::Notification done_;
  absl::Mutex mutex_;  // held while callbacks run
  bool silent_ ABSL_GUARDED_BY(mutex_) = false;
};

class GenericGrpcClientImpl final : public GenericGrpcClient {
 public:
  GenericGrpcClientImpl(std::string target, const std::shared_ptr<grpc::Channel>& channel)
      : target_(std::move(target)), channel_(channel), stub_(channel) {}

  absl::StatusOr<std::string> Call(const std::string& method, const std::string& request,
                                   const Headers& headers, absl::Duration timeout) override {
    grpc::ClientContext context;
    const absl::Time deadline = MonotonicNow() + timeout;
    context.set_deadline(ToGrpcDeadline(deadline));
    AddHeaders(headers, &context);
    const grpc::ByteBuffer sent = ToByteBuffer(Bytes(request));
    grpc::ByteBuffer response;
    struct End {
      grpc::Status status;
      TimedNotification come;
    };
    // Shared, because the callback may still be inside Notify when this function returns. The context is not
    // shared: it holds the channel, which must not be destroyed on a gRPC thread.
    const auto end = std::make_shared<End>();
    // The caller's own retries decide when to connect again, not gRPC's backoff.
    grpc::experimental::ChannelResetConnectionBackoff(channel_.get());
    // gRPC checks only every 5 s whether a failed connection has been restored, unless a thread waits for
    // that.
    if (channel_->GetState(true) == GRPC_CHANNEL_TRANSIENT_FAILURE) {
      channel_->WaitForStateChange(GRPC_CHANNEL_TRANSIENT_FAILURE,
                                   GrpcDeadlineIn(std::min(timeout, kReconnect)));
    }
    stub_.UnaryCall(&context, method, {}, &sent, &response, [end](grpc::Status status) {
      end->status = std::move(status);
      end->come.Notify();
    });
    const bool late = !end->come.WaitUntil(deadline + kGrpcLate);
    if (late) context.TryCancel();
    end->come.Wait();
    if (late && !end->status.ok()) {
      return absl::DeadlineExceededError(
          absl::StrCat(method, " at ", target_, ": no answer within ", absl::FormatDuration(timeout)));
    }
    if (end->status.ok()) return ToText(response);
    return Annotate(FromGrpcStatus(end->status), absl::StrCat(method, " at ", target_));
  }

  std::unique_ptr<ResponseStream> OpenStream(const std::string& method, const std::string& request,
                                             const Headers& headers,
                                             std::function<void(std::string)> on_response,
                                             std::function<void(absl::Status)> on_end) override {
    return std::make_unique<Stream>(&stub_, method, request, headers, std::move(on_response),
                                    std::move(on_end));
  }

  const std::string& target() const override { return target_; }

 private:
  const std::string target_;
  const std::shared_ptr<grpc::Channel> channel_;
  grpc::GenericStub stub_;
};

// Under the poll strategy, gRPC's callbacks run on threads that end with the last channel that used them, and
// sometimes abort while they end (1.51: one of these threads drops the last reference to a completion queue).
// One channel that is never closed, and never connected, keeps the threads.
void KeepCallbackThreads() {
  struct Keeper {
    std::shared_ptr<grpc::Channel> channel =
        grpc::CreateChannel("unix:/dev/null/nobody", grpc::InsecureChannelCredentials());
    grpc::GenericStub stub{channel};
    grpc::ClientContext context;
    grpc::ByteBuffer request = ToByteBuffer(Bytes(std::string("?")));
    grpc::ByteBuffer response;
  };
  // Never destroyed, in static storage: the compiler would optimise away an unread pointer, and the leak
  // checker would then report the object.
  alignas(Keeper) static std::byte place[sizeof(Keeper)];
  [[maybe_unused]] static Keeper* const keeper = [] {
    auto* made = new (place) Keeper;
    made->context.set_deadline(GrpcDeadlineIn(absl::ZeroDuration()));
    made->stub.UnaryCall(&made->context, "/nobody", {}, &made->request, &made->response, [](grpc::Status) {});
    return made;
  }();
}

}  // namespace

absl::StatusOr<std::unique_ptr<GenericGrpcClient>> GenericGrpcClient::Connect(
    const std::string& target, const GenericGrpcClientOptions& options) {
  TANDEM_ASSIGN_OR_RETURN(const Address address, ParseAddress(target));
  if (!address.is_unix() && address.port == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("bad target \"", target, "\": name the port to connect to"));
  }
  TANDEM_RETURN_IF_ERROR(KeepGrpcLibrary());
  KeepCallbackThreads();
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS,
                   std::max<int>(1, absl::ToInt64Milliseconds(options.keepalive_time)));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                   std::max<int>(1, absl::ToInt64Milliseconds(options.keepalive_timeout)));
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials();
  if (options.tls.has_value()) {
    if (options.tls->certificate.empty() != options.tls->key.empty()) {
      return absl::InvalidArgumentError("a client certificate needs its key, and a key its certificate");
    }
    grpc::SslCredentialsOptions ssl;
    ssl.pem_root_certs = options.tls->ca;
    ssl.pem_cert_chain = options.tls->certificate;
    ssl.pem_private_key = options.tls->key;
    credentials = grpc::SslCredentials(ssl);
    if (!options.tls->server_name.empty()) arguments.SetSslTargetNameOverride(options.tls->server_name);
  }
  const std::string uri =
      address.is_unix() ? target : absl::StrCat("dns:///", ResolvableAddress(address, target));
  return std::make_unique<GenericGrpcClientImpl>(target,
                                                 grpc::CreateCustomChannel(uri, credentials, arguments));
}

}  // namespace tandem::rpc
