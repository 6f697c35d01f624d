// SPDX-License-Identifier: Apache-2.0
#include "rpc/grpc/server/grpc_server.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/cgroup.h"
#include "base/status.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/impl/server_builder_option.h"
#include "grpcpp/resource_quota.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "rpc/address.h"
#include "rpc/grpc/grpc_library.h"
#include "rpc/grpc/grpc_time.h"
#include "rpc/grpc/server/connection_limit.h"
#include "rpc/grpc/server/health_service.h"
#include "rpc/grpc/server/incoming_watch.h"
#include "rpc/grpc/server/listener_watch.h"
#include "rpc/grpc/server/request_memory.h"
#include "rpc/grpc/server/stream_service.h"
#include "rpc/grpc/server/unary_service.h"
#include "rpc/grpc/socket_mutator.h"
#include "rpc/grpc/tls_credentials.h"
#include "rpc/server.h"
#include "rpc/wire/frame.h"

namespace tandem::rpc {
namespace {

class GrpcServer : public Server {
 public:
  GrpcServer(std::vector<std::unique_ptr<UnaryService>> services, std::unique_ptr<StreamService> streams,
             std::unique_ptr<HealthService> health)
      : services_(std::move(services)), streams_(std::move(streams)), health_(std::move(health)) {}

  ~GrpcServer() override { Shutdown(absl::Seconds(5)); }

  void Run(std::unique_ptr<grpc::Server> server, int port, std::unique_ptr<ListenerWatch> watch,
           std::unique_ptr<IncomingWatch> incoming) {
    server_ = std::move(server);
    port_ = port;
    watch_ = std::move(watch);
    incoming_ = std::move(incoming);
    for (grpc::ServerCompletionQueue* queue : streams_->queues()) {
      for (const auto& service : services_) service->Serve(queue);
      health_->Serve(queue);
    }
    streams_->Serve();
  }

  int port() const override { return port_; }

  void SetServing(const std::string& service, bool serving) override {
    health_->SetServing(service, serving);
  }

  void Shutdown(absl::Duration grace) override {
    absl::MutexLock lock(&shutdown_mutex_);  // a second caller returns when the first has finished
    if (shut_down_ || server_ == nullptr) return;
    shut_down_ = true;
    if (watch_ != nullptr) watch_->Stop();  // it holds the listeners open
    health_->Shutdown();
    streams_->Drain();
    server_->Shutdown(GrpcDeadlineIn(grace));
    if (incoming_ != nullptr) incoming_->Stop();
    for (const auto& service : services_) service->AwaitNone();
    health_->AwaitNone();
    streams_->Stop();
  }

 private:
  // Declared before server_, which refers to them.
  const std::vector<std::unique_ptr<UnaryService>> services_;
  const std::unique_ptr<StreamService> streams_;
  const std::unique_ptr<HealthService> health_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<ListenerWatch> watch_;
  std::unique_ptr<IncomingWatch> incoming_;
  int port_ = 0;
  absl::Mutex shutdown_mutex_;
  bool shut_down_ ABSL_GUARDED_BY(shutdown_mutex_) = false;
};

class LimitConnections : public grpc::ServerBuilderOption {
 public:
  explicit LimitConnections(std::shared_ptr<ConnectionLimit> limit) : limit_(std::move(limit)) {}
  void UpdateArguments(grpc::ChannelArguments* arguments) override { limit_->AddTo(arguments); }
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>*) override {}

 private:
  const std::shared_ptr<ConnectionLimit> limit_;
};

// Removes the plugin that gRPC's reflection library adds to every server of a program that links it.
class NoReflection : public grpc::ServerBuilderOption {
 public:
  void UpdateArguments(grpc::ChannelArguments*) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    std::erase_if(*plugins, [](const auto& plugin) { return plugin->name() == "proto_server_reflection"; });
  }
};

int ClampToInt(size_t value) {
  return static_cast<int>(std::min<size_t>(value, std::numeric_limits<int>::max()));
}

void Configure(const ServerOptions& options, std::shared_ptr<ConnectionLimit> limit,
               grpc::ServerBuilder* builder) {
  // Longer messages arrive as frames of a stream.
  static_assert(kMaxUnaryBytes >= kMaxFrameBytes);
  builder->SetMaxReceiveMessageSize(kMaxUnaryBytes);
  // Checked when calls are answered, with a more precise message.
  builder->SetMaxSendMessageSize(-1);
  // Two servers on one port would share its connections.
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 20000);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10000);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                              ClampToInt(absl::ToInt64Milliseconds(options.min_keepalive_interval)));
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 64 << 20);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 1 << 20);
  builder->AddChannelArgument(GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, kFramePayload);
  // A connection without a TLS handshake and HTTP/2's preface by then is closed.
  builder->AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 10000);
  // Tandem's own channels need a few streams each. Stock clients wait for a free one.
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 64);
  // Compressed messages are refused, and never unpacked: 200 KB can become 200 MB.
  builder->AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  for (const grpc_compression_algorithm algorithm : {GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP}) {
    builder->SetCompressionAlgorithmSupportStatus(algorithm, false);
  }
  builder->SetOption(std::make_unique<LimitConnections>(std::move(limit)));
  if (!options.reflection) builder->SetOption(std::make_unique<NoReflection>());
  // Reflection is the only synchronous service, so one thread suffices. (In addition to the server's queues,
  // gRPC gives it a queue that does not wait for connections.)
  builder->SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::NUM_CQS, 1);
  builder->SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::MIN_POLLERS, 1);
  builder->SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::MAX_POLLERS, 1);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> StartGrpcServer(const ServerOptions& options,
                                                        std::vector<Service> services) {
  TANDEM_ASSIGN_OR_RETURN(Address address, ParseAddress(options.listen));
  TANDEM_RETURN_IF_ERROR(CheckBindable(address, options.listen));
  TANDEM_RETURN_IF_ERROR(CheckLimitWorks(options.max_connections, TANDEM_GRPC_SOCKET_MUTATOR != 0));

  const uint64_t usable = UsableMemory();
  const size_t max_held =
      options.max_held_request_bytes_in_all > 0 ? options.max_held_request_bytes_in_all : usable / 2;
  const size_t max_incomplete = options.max_incomplete_bytes > 0 ? options.max_incomplete_bytes : usable / 4;
  // One request, with its headers, does not exceed the limit of incomplete messages.
  const auto memory = std::make_shared<RequestMemory>(options.max_held_request_bytes, max_held,
                                                      max_incomplete - max_incomplete / 8);
  std::vector<std::unique_ptr<UnaryService>> raw_services;
  auto health = std::make_unique<HealthService>(memory);
  health->SetServing("", options.serving);
  for (const rpc::Service& service : services) {
    health->SetServing(service.name, true);
    raw_services.push_back(std::make_unique<UnaryService>(service, options.max_message_bytes, memory));
  }
  auto streams = std::make_unique<StreamService>(options, services, memory);

  TANDEM_RETURN_IF_ERROR(KeepGrpcLibrary());
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::ServerCredentials> credentials,
                          ServerCredentialsFor(address, options.key));
  // Process-wide options, which gRPC reads when a server is built.
  grpc::EnableDefaultHealthCheckService(false);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();

  const auto limit = std::make_shared<ConnectionLimit>(
      options.listen, EffectiveConnections(options.max_connections), UsesTls(address), memory);
  grpc::ServerBuilder builder;
  Configure(options, limit, &builder);
  // The last resort: when gRPC has more in memory, it ends streams, whichever they are.
  grpc::ResourceQuota quota(absl::StrCat("tandem ", options.listen));
  quota.Resize(usable / 4 * 3);
  builder.SetResourceQuota(quota);
  for (const auto& service : raw_services) builder.RegisterService(service.get());
  builder.RegisterService(health->service());
  streams->AddTo(&builder);
  int port = 0;
  builder.AddListeningPort(ResolvableAddress(address, options.listen), credentials, &port);
  std::shared_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor =
      builder.experimental().AddExternalConnectionAcceptor(
          grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, credentials);

  auto server = std::make_unique<GrpcServer>(std::move(raw_services), std::move(streams), std::move(health));
  std::unique_ptr<grpc::Server> built = builder.BuildAndStart();
  if (built == nullptr || port == 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", options.listen, ": the address was taken, or is not permitted"));
  }
  const auto take = [limit, acceptor](size_t, int fd) {
    limit->AddConnection(fd);
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
    connection.fd = fd;
    acceptor->HandleNewConnection(&connection);
  };
  server->Run(
      std::move(built), address.is_unix() ? 0 : port,
      std::make_unique<ListenerWatch>(limit->DuplicateListeners(), options.listen, take),
      // Unix sockets tell nothing of what has arrived, and only processes of this user reach them.
      address.is_unix()
          ? nullptr
          : std::make_unique<IncomingWatch>(
                IncomingWatch::Options{.server = options.listen, .max_bytes = max_incomplete}, limit));
  return server;
}

}  // namespace tandem::rpc
