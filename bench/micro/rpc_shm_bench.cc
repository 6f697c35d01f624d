// SPDX-License-Identifier: Apache-2.0
// Compares calls between two processes of one host over shared memory with calls over gRPC, in turn: the
// latency of one call, and the throughput with 8 in flight. The server responds like a parameter server: it
// gathers rows of 256 bytes from random places of a table of 256 MiB, into the transport's memory where the
// transport offers it.
//
//   rpc_shm_bench [seconds per result] [rounds]

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "base/buffer_pool.h"
#include "base/random.h"
#include "base/status.h"
#include "rpc/connect.h"
#include "rpc/server.h"

namespace tandem::rpc {
namespace {

constexpr char kGather[] = "/bench.Rows/Gather";
constexpr size_t kRow = 256, kRows = size_t{1} << 20;
constexpr size_t kAhead = 16;  // rows prefetched ahead

struct Request {
  uint64_t seed, bytes;
};

// Serves until the process is killed.
void RunServer(int port_pipe) {
  constexpr size_t kHugePage = size_t{2} << 20;
  char* const table = static_cast<char*>(std::aligned_alloc(kHugePage, kRow * kRows));
  madvise(table, kRow * kRows, MADV_HUGEPAGE);
  std::memset(table, 1, kRow * kRows);
  BufferPool pool;
  Handler gather = [&](std::shared_ptr<ServerCall> call) {
    Request request;
    BytesReader(call->request()).Copy(&request, sizeof(request));
    std::shared_ptr<char> memory = call->ResponseMemory(request.bytes);
    if (memory == nullptr) memory = pool.Get(request.bytes);
    const auto row = [&](size_t i) { return &table[Mix64(request.seed + i) % kRows * kRow]; };
    const char* rows[kAhead];
    for (size_t i = 0; i < kAhead; ++i) rows[i] = row(i);
    for (size_t done = 0, i = 0; done < request.bytes; done += kRow, ++i) {
      const char* from = std::exchange(rows[i % kAhead], row(i + kAhead));
      for (size_t line = 0; line < kRow; line += 64) __builtin_prefetch(rows[i % kAhead] + line);
      std::memcpy(memory.get() + done, from, std::min(kRow, request.bytes - done));
    }
    const char* data = memory.get();
    call->Finish(Bytes(Slice(std::move(memory), data, request.bytes)));
  };
  auto server = Server::Start({}, {{"bench.Rows", {{"Gather", Right::kRead, gather}}}});
  TANDEM_CHECK_MSG(server.ok(), server.status().ToString());
  const int port = (*server)->port();
  TANDEM_CHECK(write(port_pipe, &port, sizeof(port)) == sizeof(port));
  pause();
}

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Figures {
  double p50_us, p99_us, calls_per_s;
};

Bytes NewRequest(uint64_t seed, size_t bytes) {
  const Request request{seed * 1000003, bytes};
  return Bytes(std::string(reinterpret_cast<const char*>(&request), sizeof(request)));
}

// Reads the response once, as a client that copies the rows would.
uint64_t Read(const Bytes& response) {
  uint64_t sum = 0;
  for (const Slice& slice : response.slices()) {
    for (size_t i = 0; i + 8 <= slice.size(); i += 64) {
      uint64_t word;
      std::memcpy(&word, slice.data() + i, sizeof(word));
      sum += word;
    }
  }
  return sum;
}

std::atomic<uint64_t> sink{0};

Figures Measure(Channel& channel, size_t bytes, int in_flight, double seconds) {
  std::vector<double> times;
  absl::Mutex mutex;
  const double begin = Now(), end = begin + seconds;
  if (in_flight == 1) {
    for (uint64_t seed = 0; Now() < end; ++seed) {
      const double started = Now();
      absl::StatusOr<Bytes> response = channel.Call(kGather, NewRequest(seed, bytes), {});
      TANDEM_CHECK_MSG(response.ok(), response.status().ToString());
      sink += Read(*response);
      times.push_back(Now() - started);
    }
  } else {
    int outstanding = 0;
    for (uint64_t seed = 0; Now() < end; ++seed) {
      {
        const auto room = [&] { return outstanding < in_flight; };
        absl::MutexLock lock(&mutex, absl::Condition(&room));
        ++outstanding;
      }
      channel.CallAsync(kGather, NewRequest(seed, bytes), {},
                        [&, started = Now()](absl::StatusOr<Bytes> response) {
                          TANDEM_CHECK_MSG(response.ok(), response.status().ToString());
                          sink += Read(*response);
                          absl::MutexLock lock(&mutex);
                          --outstanding;
                          times.push_back(Now() - started);
                        });
    }
    const auto none = [&] { return outstanding == 0; };
    absl::MutexLock lock(&mutex, absl::Condition(&none));
  }
  const double took = Now() - begin;
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2] * 1e6, times[times.size() * 99 / 100] * 1e6, times.size() / took};
}

int Main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 0.5;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 3;
  int ends[2];
  TANDEM_CHECK(pipe(ends) == 0);
  const pid_t server = fork();  // before gRPC starts threads
  if (server == 0) {
    RunServer(ends[1]);
    return 0;
  }
  int port;
  TANDEM_CHECK(read(ends[0], &port, sizeof(port)) == sizeof(port));
  const std::string target = "127.0.0.1:" + std::to_string(port);
  ConnectOptions by_shm;  // A variable, because GCC warns wrongly about a temporary.
  by_shm.transport = "shm";
  auto shm = Connect(target, by_shm);
  TANDEM_CHECK_MSG(shm.ok(), shm.status().ToString());
  auto grpc = ConnectGrpc(target);
  TANDEM_CHECK_MSG(grpc.ok(), grpc.status().ToString());
  std::printf("%9s %9s %9s | %9s %9s %9s %7s\n", "bytes", "in flight", "transport", "p50 us", "p99 us",
              "calls/s", "GB/s");
  for (const size_t bytes : {size_t{64}, size_t{64} << 10, size_t{1} << 20, size_t{4} << 20}) {
    for (const int in_flight : {1, 8}) {
      for (int round = 0; round < rounds; ++round) {
        for (Channel* channel : {shm->get(), grpc->get()}) {
          Measure(*channel, bytes, in_flight, seconds / 5);
          const Figures f = Measure(*channel, bytes, in_flight, seconds);
          std::printf("%9zu %9d %9s | %9.1f %9.1f %9.0f %7.2f\n", bytes, in_flight,
                      std::string(channel->transport()).c_str(), f.p50_us, f.p99_us, f.calls_per_s,
                      f.calls_per_s * bytes / 1e9);
          std::fflush(stdout);
        }
      }
    }
  }
  shm->reset();
  grpc->reset();
  kill(server, SIGTERM);
  waitpid(server, nullptr, 0);
  return 0;
}

}  // namespace
}  // namespace tandem::rpc

int main(int argc, char** argv) { return tandem::rpc::Main(argc, argv); }
