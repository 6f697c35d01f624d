// SPDX-License-Identifier: Apache-2.0
// A simple parameter server over gRPC: a synchronous unary service, protobuf messages, a std::unordered_map
// from id to row, Adagrad on push. Timed as `tandem bench ps` times Tandem's:
//
//   bench/peers/plain_grpc_ps --op pull,push --ids 16384 --dim 64 --in-flight 1,4 --json
//
// Calls in flight are threads, each with one blocking call at a time.

#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "bench/peers/ps_peer.h"
#include "plain_ps.grpc.pb.h"

namespace tandem::bench {
namespace {

using grpc::Status;

class PlainPsService : public PlainPs::Service {
 public:
  explicit PlainPsService(const PsPeerSetup& setup) : dim_(setup.dim) {
    rows_.reserve(setup.rows);
    for (uint64_t id = 0; id < setup.rows; ++id) {
      Row& row = rows_[id];
      row.weights.assign(dim_, FirstValue(id));
      row.accumulators.assign(dim_, 1.0f);
    }
  }

  Status Pull(grpc::ServerContext*, const PullRequest* request, PullResponse* response) override {
    const size_t row_bytes = dim_ * sizeof(float);
    std::string* const out = response->mutable_rows();
    out->resize(static_cast<size_t>(request->ids_size()) * row_bytes);
    std::shared_lock lock(mutex_);
    char* to = out->data();
    for (const uint64_t id : request->ids()) {
      const auto found = rows_.find(id);
      if (found == rows_.end()) return Status(grpc::StatusCode::NOT_FOUND, "no such row");
      std::memcpy(to, found->second.weights.data(), row_bytes);
      to += row_bytes;
    }
    return Status::OK;
  }

  Status Push(grpc::ServerContext*, const PushRequest* request, PushResponse*) override {
    const size_t row_bytes = dim_ * sizeof(float);
    if (request->gradients().size() != static_cast<size_t>(request->ids_size()) * row_bytes) {
      return Status(grpc::StatusCode::INVALID_ARGUMENT, "gradients and ids do not fit");
    }
    std::unique_lock lock(mutex_);
    const char* from = request->gradients().data();
    std::vector<float> gradient(dim_);
    for (const uint64_t id : request->ids()) {
      const auto found = rows_.find(id);
      if (found == rows_.end()) return Status(grpc::StatusCode::NOT_FOUND, "no such row");
      std::memcpy(gradient.data(), from, row_bytes);
      from += row_bytes;
      float* const w = found->second.weights.data();
      float* const a = found->second.accumulators.data();
      for (size_t d = 0; d < dim_; ++d) {
        a[d] += gradient[d] * gradient[d];
        w[d] -= 0.05f * gradient[d] / (std::sqrt(a[d]) + 1e-10f);
      }
    }
    return Status::OK;
  }

 private:
  struct Row {
    std::vector<float> weights, accumulators;
  };
  const size_t dim_;
  std::shared_mutex mutex_;
  std::unordered_map<uint64_t, Row> rows_;
};

int Serve(const PsPeerSetup& setup, const std::function<void(std::string)>& announce) {
  PlainPsService service(setup);
  grpc::ServerBuilder builder;
  int port = 0;
  const bool local = setup.transport == "unix";
  const std::string path = "unix:/tmp/plain-grpc-ps-" + std::to_string(::getpid());
  builder.AddListeningPort(local ? path : "127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.SetMaxReceiveMessageSize(-1);
  builder.SetMaxSendMessageSize(-1);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return 1;
  announce(local ? path : "127.0.0.1:" + std::to_string(port));
  server->Wait();
  return 0;
}

class PlainGrpcClient : public PsPeer {
 public:
  PlainGrpcClient(const PsPeerSetup& setup, const std::string& address) : dim_(setup.dim) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    arguments.SetMaxSendMessageSize(-1);
    stub_ =
        PlainPs::NewStub(grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
  }

  std::vector<double> Run(const PsCase& c, const IdBatches& batches, size_t next, double end) override {
    std::vector<std::vector<double>> latencies_us(static_cast<size_t>(c.in_flight));
    std::vector<std::thread> threads;
    const size_t stride = latencies_us.size();
    for (size_t t = 0; t < stride; ++t) {
      threads.emplace_back([&, t] { latencies_us[t] = RunThread(c, batches, next + t, stride, end); });
    }
    for (std::thread& thread : threads) thread.join();
    std::vector<double> all;
    for (const auto& each : latencies_us) {
      if (each.empty()) return {};
      all.insert(all.end(), each.begin(), each.end());
    }
    return all;
  }

 private:
  std::vector<double> RunThread(const PsCase& c, const IdBatches& batches, size_t next, size_t stride,
                                double end) {
    std::vector<double> latencies_us;
    std::vector<float> rows(c.ids * dim_);
    const std::vector<float> gradients(c.ids * dim_, 0.0625f);
    do {
      const std::vector<uint64_t>& ids = batches[next % batches.size()];
      next += stride;
      const double begin = Now();
      const Status status = c.op == PsOp::kPull ? Pull(ids, &rows) : Push(ids, gradients);
      latencies_us.push_back((Now() - begin) * 1e6);
      if (!status.ok()) {
        std::fprintf(stderr, "plain_grpc_ps: %s\n", status.error_message().c_str());
        return {};
      }
    } while (Now() < end);
    return latencies_us;
  }

  Status Pull(const std::vector<uint64_t>& ids, std::vector<float>* rows) {
    grpc::ClientContext context;
    PullRequest request;
    PullResponse response;
    request.mutable_ids()->Add(ids.begin(), ids.end());
    const Status status = stub_->Pull(&context, request, &response);
    if (!status.ok()) return status;
    if (response.rows().size() != rows->size() * sizeof(float)) {
      return Status(grpc::StatusCode::DATA_LOSS, "an answer of another size");
    }
    std::memcpy(rows->data(), response.rows().data(), response.rows().size());
    if (!pushed_) {
      for (size_t i = 0; i < ids.size(); i += 251) {
        if ((*rows)[i * dim_] != FirstValue(ids[i]))
          return Status(grpc::StatusCode::DATA_LOSS, "a wrong row");
      }
    }
    return Status::OK;
  }

  Status Push(const std::vector<uint64_t>& ids, const std::vector<float>& gradients) {
    pushed_ = true;
    grpc::ClientContext context;
    PushRequest request;
    PushResponse response;
    request.mutable_ids()->Add(ids.begin(), ids.end());
    request.set_gradients(gradients.data(), gradients.size() * sizeof(float));
    return stub_->Push(&context, request, &response);
  }

  const size_t dim_;
  std::unique_ptr<PlainPs::Stub> stub_;
  std::atomic<bool> pushed_{false};
};

PsPeer* Connect(const PsPeerSetup& setup, const std::string& address) {
  return new PlainGrpcClient(setup, address);
}

}  // namespace
}  // namespace tandem::bench

int main(int argc, char** argv) {
  return tandem::bench::RunPsPeer(argc, argv, "plain_grpc_ps", tandem::bench::Serve, tandem::bench::Connect);
}
