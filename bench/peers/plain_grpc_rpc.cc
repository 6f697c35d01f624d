// SPDX-License-Identifier: Apache-2.0
// Simple calls over gRPC: a synchronous unary service, protobuf `bytes`. Timed as `tandem bench rpc` times
// Tandem's:
//
//   bench/peers/plain_grpc_rpc --transport tcp,unix --kind empty,echo --in-flight 1,8 --json
//
// Calls in flight are threads, each with one blocking call at a time.

#include <grpcpp/grpcpp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "bench/harness/rpc_flags.h"
#include "plain_rpc.grpc.pb.h"

namespace tandem::bench {
namespace {

using Clock = std::chrono::steady_clock;

class PlainRpcService : public PlainRpc::Service {
  grpc::Status Empty(grpc::ServerContext*, const EmptyMessage*, EmptyMessage*) override {
    return grpc::Status::OK;
  }
  grpc::Status Echo(grpc::ServerContext*, const EchoBytes* request, EchoBytes* response) override {
    response->set_data(request->data());
    return grpc::Status::OK;
  }
};

// Serves in a separate process. Writes the TCP port to `pipe`.
int Serve(const std::string& socket, int pipe) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  PlainRpcService service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.AddListeningPort(socket, grpc::InsecureServerCredentials());
  builder.SetMaxReceiveMessageSize(-1);
  builder.SetMaxSendMessageSize(-1);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || ::write(pipe, &port, sizeof(port)) != sizeof(port)) return 1;
  server->Wait();
  return 0;
}

bool OneCall(PlainRpc::Stub* stub, const RpcCase& c, const std::string& sent) {
  grpc::ClientContext context;
  if (c.kind != "echo") {
    EmptyMessage response;
    return stub->Empty(&context, EmptyMessage(), &response).ok();
  }
  EchoBytes request, response;
  request.set_data(sent);
  return stub->Echo(&context, request, &response).ok() && response.data().size() == sent.size() &&
         std::memcmp(response.data().data(), sent.data(), sent.size() < 64 ? sent.size() : 64) == 0;
}

bool Run(PlainRpc::Stub* stub, const RpcCase& c, double seconds, RpcResult* result) {
  const std::string sent(c.bytes, 'x');
  const Clock::time_point begin = Clock::now();
  const Clock::time_point end = begin + std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9));
  std::vector<std::vector<double>> latencies_us(static_cast<size_t>(c.in_flight));
  std::vector<char> failed(latencies_us.size(), 0);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < latencies_us.size(); ++t) {
    threads.emplace_back([&, t] {
      do {
        const Clock::time_point before = Clock::now();
        if (!OneCall(stub, c, sent)) {
          failed[t] = 1;
          return;
        }
        latencies_us[t].push_back(std::chrono::duration<double, std::micro>(Clock::now() - before).count());
      } while (Clock::now() < end);
    });
  }
  for (std::thread& thread : threads) thread.join();
  result->seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  result->latencies_us.clear();
  for (size_t t = 0; t < latencies_us.size(); ++t) {
    if (failed[t] != 0) return false;
    result->latencies_us.insert(result->latencies_us.end(), latencies_us[t].begin(), latencies_us[t].end());
  }
  return true;
}

int Main(int argc, char** argv) {
  RpcFlags flags;
  flags.transports = "tcp,unix";
  flags.kinds = "empty,echo";
  flags.in_flight = "1,8";
  if (const std::optional<int> code = ParseRpcFlags("Echoes over plain gRPC", argc, argv, &flags))
    return *code;
  const absl::StatusOr<std::vector<RpcCase>> cases = RpcCasesOf(flags);
  if (!cases.ok()) {
    std::fprintf(stderr, "plain_grpc_rpc: %s\n", cases.status().ToString().c_str());
    return 2;
  }
  const std::string socket = "unix:/tmp/plain-grpc-rpc-" + std::to_string(::getpid());
  int pipe[2];
  if (::pipe(pipe) != 0) return 1;
  const pid_t server = ::fork();  // before gRPC starts threads
  if (server == 0) _exit(Serve(socket, pipe[1]));
  int port = 0;
  if (::read(pipe[0], &port, sizeof(port)) != sizeof(port)) return 1;
  int code = 0;
  for (const RpcCase& c : *cases) {
    if (c.transport != "tcp" && c.transport != "unix") continue;
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    arguments.SetMaxSendMessageSize(-1);
    const auto stub = PlainRpc::NewStub(
        grpc::CreateCustomChannel(c.transport == "tcp" ? "127.0.0.1:" + std::to_string(port) : socket,
                                  grpc::InsecureChannelCredentials(), arguments));
    RpcResult result;
    if (!Run(stub.get(), c, 0.2 * flags.time_ms / 1e3, &result) ||
        !Run(stub.get(), c, flags.time_ms / 1e3, &result)) {
      std::fprintf(stderr, "plain_grpc_rpc: a call failed\n");
      code = 1;
      break;
    }
    PrintRpcResult(c, std::move(result), flags.json);
  }
  ::kill(server, SIGKILL);
  ::unlink(socket.c_str() + 5);
  return code;
}

}  // namespace
}  // namespace tandem::bench

int main(int argc, char** argv) { return tandem::bench::Main(argc, argv); }
