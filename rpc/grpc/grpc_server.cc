#include "rpc/grpc/grpc_server.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/impl/codegen/server_callback_handlers.h"
#include "grpcpp/impl/rpc_service_method.h"
#include "grpcpp/impl/service_type.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "grpcpp/support/server_callback.h"
#include "rpc/address.h"
#include "rpc/cancel_hook.h"
#include "rpc/grpc/grpc_bytes.h"
#include "rpc/grpc/grpc_library.h"
#include "rpc/grpc/grpc_status.h"
#include "rpc/grpc/server_stream.h"
#include "rpc/server.h"
#include "rpc/stream/frame.h"

namespace tandem::rpc {
namespace {

absl::Time FromGrpcDeadline(std::chrono::system_clock::time_point deadline) {
  return deadline == std::chrono::system_clock::time_point::max() ? absl::InfiniteFuture()
                                                                  : absl::FromChrono(deadline);
}

// gRPC's end of a call. gRPC holds it (through self_) until OnDone; the handler's GrpcServerCall holds it
// too.
class Reactor : public grpc::ServerUnaryReactor {
 public:
  static std::shared_ptr<Reactor> Make(grpc::ByteBuffer* response, size_t max_message_bytes) {
    auto reactor = std::make_shared<Reactor>(response, max_message_bytes);
    reactor->self_ = reactor;
    return reactor;
  }
  Reactor(grpc::ByteBuffer* response, size_t max_message_bytes)
      : response_(response), max_message_bytes_(max_message_bytes) {}

  // The first answer counts, later ones are dropped: a cancelled call may already be over when its handler
  // finishes.
  void Answer(absl::StatusOr<Bytes> answer) {
    if (answered_.exchange(true)) return;
    // gRPC keeps the call, and with it *response_, until Finish() below.
    if (answer.ok() && answer->size() > max_message_bytes_) {
      answer = absl::ResourceExhaustedError(
          absl::StrCat("an answer of ", answer->size(), " bytes exceeds the server's limit of ",
                       max_message_bytes_, " bytes (ServerOptions::max_message_bytes)"));
    }
    if (answer.ok()) *response_ = ToByteBuffer(*answer);
    Finish(ToGrpcStatus(answer.status()));
  }

  bool cancelled() const { return cancel_hook_.cancelled(); }
  CancelHook& cancel_hook() { return cancel_hook_; }

 private:
  void OnCancel() override {
    if (CancelHook::Hook hook = cancel_hook_.Cancel()) std::move(hook)();
    // A parked call must not keep the server from shutting down until its handler comes back.
    Answer(absl::CancelledError("the caller went away or its deadline passed"));
  }
  void OnDone() override { self_.reset(); }
  // OnDone and OnCancel are short and run no handler: gRPC need not hand them to another thread.
  bool InternalInlineable() override { return true; }

  grpc::ByteBuffer* const response_;
  const size_t max_message_bytes_;
  std::atomic<bool> answered_{false};
  CancelHook cancel_hook_;
  std::shared_ptr<Reactor> self_;
};

// The handler's end of a call.
class GrpcServerCall : public ServerCall {
 public:
  GrpcServerCall(std::shared_ptr<Reactor> reactor, const std::string& method,
                 const grpc::CallbackServerContext& context, const grpc::ByteBuffer& request)
      : reactor_(std::move(reactor)),
        method_(method),
        request_(FromByteBuffer(request)),
        peer_(context.peer()),
        deadline_(FromGrpcDeadline(context.deadline())) {}

  ~GrpcServerCall() override {
    if (!finished_.load())
      reactor_->Answer(absl::InternalError(absl::StrCat("the handler of ", method_, " gave no answer")));
  }

  const Bytes& request() const override { return request_; }
  const std::string& peer() const override { return peer_; }
  absl::Time deadline() const override { return deadline_; }
  bool IsCancelled() const override { return reactor_->cancelled() || absl::Now() > deadline_; }
  void Finish(absl::StatusOr<Bytes> response) override {
    finished_.store(true);
    reactor_->cancel_hook().Drop();
    reactor_->Answer(std::move(response));
  }
  void OnCancel(absl::AnyInvocable<void() &&> hook) override { reactor_->cancel_hook().Set(std::move(hook)); }

 private:
  const std::shared_ptr<Reactor> reactor_;
  const std::string method_;
  const Bytes request_;
  const std::string peer_;
  const absl::Time deadline_;
  std::atomic<bool> finished_{false};
};

// A Service as gRPC knows it. Methods take and give raw bytes, so generated stubs of any language can call
// them.
class RawService : public grpc::Service {
 public:
  RawService(const rpc::Service& service, size_t max_message_bytes) {
    for (const Method& method : service.methods) {
      // gRPC keeps the pointer to the name: a deque never moves its strings.
      const std::string& path = paths_.emplace_back(absl::StrCat("/", service.name, "/", method.name));
      AddMethod(
          new grpc::internal::RpcServiceMethod(path.c_str(), grpc::internal::RpcMethod::NORMAL_RPC, nullptr));
      auto serve = [&path, max_message_bytes, handler = method.handler](
                       grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                       grpc::ByteBuffer* response) -> grpc::ServerUnaryReactor* {
        std::shared_ptr<Reactor> reactor = Reactor::Make(response, max_message_bytes);
        Reactor* raw = reactor.get();
        if (request->Length() > max_message_bytes) {
          raw->Answer(absl::ResourceExhaustedError(
              absl::StrCat("a request of ", request->Length(),
                           " bytes is larger than max_message_bytes of the server, ", max_message_bytes)));
          return raw;
        }
        handler(std::make_shared<GrpcServerCall>(std::move(reactor), path, *context, *request));
        return raw;  // alive until OnDone, which comes after this returns
      };
      MarkMethodRawCallback(
          static_cast<int>(paths_.size()) - 1,
          new grpc::internal::CallbackUnaryHandler<grpc::ByteBuffer, grpc::ByteBuffer>(serve));
    }
  }

 private:
  std::deque<std::string> paths_;
};

class GrpcServer : public Server {
 public:
  GrpcServer(std::vector<std::unique_ptr<RawService>> services, std::vector<std::string> names,
             std::unique_ptr<StreamService> streams)
      : services_(std::move(services)), names_(std::move(names)), streams_(std::move(streams)) {}

  ~GrpcServer() override { Shutdown(absl::Seconds(5)); }

  void Run(std::unique_ptr<grpc::Server> server, int port) {
    server_ = std::move(server);
    port_ = port;
    streams_->Serve();
    for (const std::string& name : names_) server_->GetHealthCheckService()->SetServingStatus(name, true);
  }

  int port() const override { return port_; }

  void SetServing(const std::string& service, bool serving) override {
    // gRPC forgets it once it was told to shut down.
    server_->GetHealthCheckService()->SetServingStatus(service, serving);
  }

  void Shutdown(absl::Duration grace) override {
    absl::MutexLock lock(&shutdown_mutex_);  // a second caller returns when the first is done
    if (shut_down_ || server_ == nullptr) return;
    shut_down_ = true;
    // Watchers hear NOT_SERVING, for every service and for good.
    server_->GetHealthCheckService()->Shutdown();
    streams_->Drain();
    server_->Shutdown(absl::ToChronoTime(absl::Now() + grace));
    streams_->Stop();
  }

 private:
  // Before server_, which refers to them.
  const std::vector<std::unique_ptr<RawService>> services_;
  const std::vector<std::string> names_;
  const std::unique_ptr<StreamService> streams_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
  absl::Mutex shutdown_mutex_;
  bool shut_down_ ABSL_GUARDED_BY(shutdown_mutex_) = false;
};

int ClampToInt(size_t value) {
  return static_cast<int>(std::min<size_t>(value, std::numeric_limits<int>::max()));
}

void Configure(const ServerOptions& options, grpc::ServerBuilder* builder) {
  // Larger requests are refused by us, call by call: gRPC would end the whole stream.
  builder->SetMaxReceiveMessageSize(ClampToInt(std::max(options.max_message_bytes, kMaxFrameBytes)));
  builder->SetMaxSendMessageSize(-1);  // checked in Reactor::Answer, with a message that says more
  // Two servers on one port would share its connections between them.
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 20000);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10000);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                              ClampToInt(absl::ToInt64Milliseconds(options.min_keepalive_interval)));
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 64 << 20);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 1 << 20);
  // Only reflection is a synchronous service: one thread is plenty.
  builder->SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::NUM_CQS, 1);
  builder->SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::MIN_POLLERS, 1);
  builder->SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::MAX_POLLERS, 1);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> StartGrpcServer(const ServerOptions& options,
                                                        std::vector<Service> services) {
  TANDEM_ASSIGN_OR_RETURN(Address address, ParseAddress(options.listen));
  TANDEM_RETURN_IF_ERROR(CheckBindable(address, options.listen));

  std::vector<std::unique_ptr<RawService>> raw_services;
  std::vector<std::string> names;
  for (const rpc::Service& service : services) {
    names.push_back(service.name);
    raw_services.push_back(std::make_unique<RawService>(service, options.max_message_bytes));
  }
  auto streams = std::make_unique<StreamService>(options, services);

  KeepGrpcLibrary();
  // Both are switches of the process that gRPC reads when a server is built.
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();

  grpc::ServerBuilder builder;
  Configure(options, &builder);
  for (size_t i = 0; i < names.size(); ++i) builder.RegisterService(raw_services[i].get());
  streams->AddTo(&builder);
  int port = 0;
  builder.AddListeningPort(options.listen, grpc::InsecureServerCredentials(), &port);

  auto server = std::make_unique<GrpcServer>(std::move(raw_services), std::move(names), std::move(streams));
  std::unique_ptr<grpc::Server> built = builder.BuildAndStart();
  if (built == nullptr || port == 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", options.listen, ": the address was taken, or is not permitted"));
  }
  server->Run(std::move(built), address.is_unix() ? 0 : port);
  return server;
}

}  // namespace tandem::rpc
