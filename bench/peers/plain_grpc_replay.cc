// SPDX-License-Identifier: Apache-2.0
// A simple replay buffer over gRPC: a synchronous unary service, items as strings in a ring, uniform samples,
// and a binary sum tree for prioritized ones. Timed as `tandem bench replay` times Tandem's:
//
//   bench/peers/plain_grpc_replay --transport tcp --op insert,sample --bytes 100 --json

#include <grpcpp/grpcpp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "bench/harness/replay_flags.h"
#include "plain_replay.grpc.pb.h"

namespace tandem::bench {
namespace {

using grpc::Status;

class PlainReplayService : public PlainReplay::Service {
 public:
  explicit PlainReplayService(uint64_t items) : items_(items), leaves_(std::bit_ceil(items)) {
    sums_.assign(2 * leaves_, 0.0);
  }

  Status Insert(grpc::ServerContext*, const InsertItemsRequest* request, InsertItemsResponse*) override {
    std::lock_guard lock(mutex_);
    for (const std::string& item : request->items()) {
      items_[next_] = item;
      Set(next_, 1.0);
      next_ = (next_ + 1) % items_.size();
      size_ = std::min(size_ + 1, items_.size());
    }
    return Status::OK;
  }

  Status Sample(grpc::ServerContext*, const SampleItemsRequest* request,
                SampleItemsResponse* response) override {
    std::lock_guard lock(mutex_);
    if (size_ == 0) return Status(grpc::StatusCode::FAILED_PRECONDITION, "no items");
    for (uint32_t i = 0; i < request->batch(); ++i) {
      const uint64_t key = request->prioritized() ? Find() : random_() % size_;
      response->add_keys(key);
      response->add_items(items_[key]);
    }
    return Status::OK;
  }

  Status Update(grpc::ServerContext*, const UpdateItemsRequest* request, UpdateItemsResponse*) override {
    std::lock_guard lock(mutex_);
    for (int i = 0; i < request->keys_size(); ++i) {
      if (request->keys(i) >= size_) return Status(grpc::StatusCode::NOT_FOUND, "no such item");
      Set(request->keys(i), std::pow(request->priorities(i), 0.6));
    }
    return Status::OK;
  }

 private:
  void Set(uint64_t key, double weight) {
    size_t node = leaves_ + key;
    sums_[node] = weight;
    for (node /= 2; node > 0; node /= 2) sums_[node] = sums_[2 * node] + sums_[2 * node + 1];
  }
  uint64_t Find() {
    double target = std::uniform_real_distribution<double>(0, sums_[1])(random_);
    size_t node = 1;
    while (node < leaves_) {
      node *= 2;
      if (target >= sums_[node] && sums_[node + 1] > 0) target -= sums_[node++];
    }
    return std::min<uint64_t>(node - leaves_, size_ - 1);
  }

  std::mutex mutex_;
  std::vector<std::string> items_;
  const size_t leaves_;
  std::vector<double> sums_;
  size_t next_ = 0, size_ = 0;
  std::mt19937_64 random_{1};
};

int Serve(uint64_t items, int announce) {
  PlainReplayService service(items);
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.SetMaxReceiveMessageSize(-1);
  builder.SetMaxSendMessageSize(-1);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return 1;
  const std::string address = "127.0.0.1:" + std::to_string(port);
  if (::write(announce, address.data(), address.size()) < 0) return 1;
  ::close(announce);
  server->Wait();
  return 0;
}

class PlainGrpcReplay : public ReplayTarget {
 public:
  ~PlainGrpcReplay() override { StopServer(); }

  absl::Status Prepare(const ReplayCase& c) override {
    case_ = c;
    StopServer();
    int fds[2];
    if (::pipe(fds) != 0) return absl::ErrnoToStatus(errno, "pipe");
    server_ = ::fork();
    if (server_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::close(fds[0]);
      ::_exit(Serve(c.items, fds[1]));
    }
    ::close(fds[1]);
    char bytes[64];
    std::string address;
    for (ssize_t size; (size = ::read(fds[0], bytes, sizeof(bytes))) > 0;) {
      address.append(bytes, static_cast<size_t>(size));
    }
    ::close(fds[0]);
    if (address.empty()) return absl::InternalError("the server did not start");
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    arguments.SetMaxSendMessageSize(-1);
    stub_ = PlainReplay::NewStub(
        grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
    item_.assign(c.bytes, '\7');
    for (uint64_t i = 0; i < c.items;) {
      const auto n = static_cast<uint32_t>(std::min<uint64_t>(c.bytes > 8192 ? 16 : 1024, c.items - i));
      if (absl::Status status = Insert(n); !status.ok()) return status;
      i += n;
    }
    return absl::OkStatus();
  }

  absl::Status Call() override {
    if (case_.op == "insert") return Insert(case_.per_call);
    grpc::ClientContext context;
    SampleItemsRequest request;
    SampleItemsResponse response;
    request.set_batch(case_.per_call);
    request.set_prioritized(case_.op == "priorities");
    if (Status status = stub_->Sample(&context, request, &response); !status.ok()) return Failed(status);
    // One array, as a learner needs it.
    batch_.clear();
    for (const std::string& item : response.items()) batch_ += item;
    if (batch_.size() != case_.per_call * case_.bytes || batch_.back() != '\7') {
      return absl::InternalError("a batch has other values than were written");
    }
    if (case_.op == "sample") return absl::OkStatus();
    grpc::ClientContext updating;
    UpdateItemsRequest update;
    UpdateItemsResponse updated;
    *update.mutable_keys() = response.keys();
    for (int i = 0; i < response.keys_size(); ++i) update.add_priorities(priority_(random_));
    if (Status status = stub_->Update(&updating, update, &updated); !status.ok()) return Failed(status);
    return absl::OkStatus();
  }

 private:
  static absl::Status Failed(const Status& status) { return absl::InternalError(status.error_message()); }
  absl::Status Insert(uint32_t items) {
    grpc::ClientContext context;
    InsertItemsRequest request;
    InsertItemsResponse response;
    for (uint32_t i = 0; i < items; ++i) request.add_items(item_);
    const Status status = stub_->Insert(&context, request, &response);
    return status.ok() ? absl::OkStatus() : Failed(status);
  }
  void StopServer() {
    if (server_ <= 0) return;
    ::kill(server_, SIGKILL);
    ::waitpid(server_, nullptr, 0);
    server_ = -1;
  }

  ReplayCase case_;
  pid_t server_ = -1;
  std::unique_ptr<PlainReplay::Stub> stub_;
  std::string item_, batch_;
  std::mt19937_64 random_{2};
  std::uniform_real_distribution<double> priority_{0.01, 1.0};
};

int Run(int argc, char** argv) {
  ReplayFlags flags;
  flags.transports = "tcp";
  if (const auto code = ParseReplayFlags("plain_grpc_replay", argc, argv, &flags)) return *code;
  const auto cases = ReplayCasesOf(flags);
  absl::Status status = cases.status();
  for (size_t i = 0; status.ok() && i < cases->size(); ++i) {
    // gRPC must not have been used in a process that forks, so each case has a process of its own.
    const pid_t child = ::fork();
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      PlainGrpcReplay target;
      const absl::Status measured = (*cases)[i].transport == "tcp"
                                        ? MeasureReplay(&target, (*cases)[i], flags, i == 0)
                                        : absl::InvalidArgumentError("--transport must be tcp");
      if (!measured.ok()) std::fprintf(stderr, "plain_grpc_replay: %s\n", measured.ToString().c_str());
      std::fflush(stdout);
      return measured.ok() ? 0 : 1;
    }
    int code = 0;
    ::waitpid(child, &code, 0);
    if (code != 0) return 1;
  }
  if (!status.ok()) std::fprintf(stderr, "plain_grpc_replay: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 2;
}

}  // namespace
}  // namespace tandem::bench

int main(int argc, char** argv) { return tandem::bench::Run(argc, argv); }
