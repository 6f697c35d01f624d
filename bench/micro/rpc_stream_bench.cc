// SPDX-License-Identifier: Apache-2.0
// Compares calls over one stream with separate calls, over gRPC with TCP and with a unix socket, between a
// server and a client process. Responses have given sizes, and some calls are in flight. Rounds alternate, so
// that a slow moment of the machine affects both.
//
//   rpc_stream_bench [seconds per cell, default 0.5] [rounds, default 3]

#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/status.h"
#include "rpc/channel.h"
#include "rpc/server.h"

namespace tandem::rpc {
namespace {

constexpr char kRows[] = "/bench.Rows/Get";

// Responds with the number of bytes that the request asks for.
Service RowsService() {
  auto rows = std::make_shared<std::string>(size_t{64} << 20, 'r');
  return {"bench.Rows", {{"Get", Right::kRead, [rows](std::shared_ptr<ServerCall> call) {
                            uint64_t bytes = 0;
                            BytesReader reader(call->request());
                            if (!reader.Copy(&bytes, sizeof(bytes)) || bytes > rows->size()) {
                              return call->Finish(absl::InvalidArgumentError("expected u64 bytes"));
                            }
                            call->Finish(Bytes(Slice(rows, rows->data(), bytes)));
                          }}}};
}

double CpuSeconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

struct Result {
  double median_us = 0;
  double p99_us = 0;
  double calls_per_s = 0;
  double client_cpu_us = 0;  // per call
};

// Runs `in_flight` chains of calls. Each call starts when the previous one of its chain has its response, so
// no thread waits.
class Run {
 public:
  Run(Channel* channel, uint64_t response_bytes, int in_flight, absl::Duration length)
      : channel_(channel),
        response_bytes_(response_bytes),
        chains_(in_flight),
        end_(MonotonicNow() + length) {}

  Result Go() {
    const absl::Time start = MonotonicNow();
    const double cpu = CpuSeconds();
    const int chains = chains_;
    for (int i = 0; i < chains; ++i) Next();
    over_.WaitForNotification();
    const double seconds = absl::ToDoubleSeconds(MonotonicNow() - start);
    absl::MutexLock lock(&mutex_);
    std::sort(micros_.begin(), micros_.end());
    Result result;
    if (micros_.empty()) return result;
    result.median_us = micros_[micros_.size() / 2];
    result.p99_us = micros_[micros_.size() * 99 / 100];
    result.calls_per_s = static_cast<double>(micros_.size()) / seconds;
    result.client_cpu_us = (CpuSeconds() - cpu) * 1e6 / static_cast<double>(micros_.size());
    return result;
  }

 private:
  void Next() {
    const absl::Time start = MonotonicNow();
    channel_->CallAsync(
        kRows, Bytes(std::string(reinterpret_cast<const char*>(&response_bytes_), sizeof(response_bytes_))),
        {}, [this, start](absl::StatusOr<Bytes> response) {
          TANDEM_CHECK_MSG(response.ok(), response.status().ToString());
          TANDEM_CHECK(response->size() == response_bytes_);
          const absl::Time now = MonotonicNow();
          bool last = false;
          {
            absl::MutexLock lock(&mutex_);
            micros_.push_back(absl::ToDoubleMicroseconds(now - start));
            if (now >= end_) last = --chains_ == 0;
          }
          if (now < end_) return Next();
          if (last) over_.Notify();
        });
  }

  Channel* const channel_;
  const uint64_t response_bytes_;
  absl::Mutex mutex_;
  int chains_;
  std::vector<double> micros_ ABSL_GUARDED_BY(mutex_);
  const absl::Time end_;
  absl::Notification over_;
};

// A server in a separate process, which ends with this one.
std::string Serve(const std::string& listen, std::vector<pid_t>* children) {
  int report[2];
  TANDEM_CHECK(pipe(report) == 0);
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    auto server = Server::Start({.listen = listen}, {RowsService()});
    TANDEM_CHECK_MSG(server.ok(), server.status().ToString());
    const int port = (*server)->port();
    TANDEM_CHECK(write(report[1], &port, sizeof(port)) == sizeof(port));
    while (true) pause();
  }
  children->push_back(child);
  int port = 0;
  TANDEM_CHECK(read(report[0], &port, sizeof(port)) == sizeof(port));
  close(report[0]);
  close(report[1]);
  return port == 0 ? listen : absl::StrCat("127.0.0.1:", port);
}

int Main(int argc, char** argv) {
  const absl::Duration length = absl::Seconds(argc > 1 ? std::atof(argv[1]) : 0.5);
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 3;
  std::vector<pid_t> children;
  // Before gRPC starts threads in this process.
  const std::string unix_path = absl::StrCat("/tmp/rpc_stream_bench.", getpid());
  const std::vector<std::pair<std::string, std::string>> targets = {
      {"tcp", Serve("127.0.0.1:0", &children)}, {"unix", Serve(absl::StrCat("unix:", unix_path), &children)}};
  std::printf("%-5s %8s %9s  %-6s %9s %9s %9s %7s %12s\n", "", "answer", "in flight", "", "p50 us", "p99 us",
              "calls/s", "GB/s", "client us CPU");
  for (const auto& [name, target] : targets) {
    std::vector<std::unique_ptr<Channel>> channels;
    for (const bool stream : {true, false}) {
      auto channel = ConnectGrpc(target, {.stream = stream});
      TANDEM_CHECK_MSG(channel.ok(), channel.status().ToString());
      channels.push_back(*std::move(channel));
    }
    for (const uint64_t kib : {64, 1024, 4096}) {
      for (const int in_flight : {1, 8, 16}) {
        std::vector<Result> results[2];
        for (int round = 0; round < rounds; ++round) {
          for (int i = 0; i < 2; ++i)
            results[i].push_back(Run(channels[i].get(), kib << 10, in_flight, length).Go());
        }
        for (int i = 0; i < 2; ++i) {
          std::sort(results[i].begin(), results[i].end(),
                    [](const Result& a, const Result& b) { return a.calls_per_s < b.calls_per_s; });
          const Result& r = results[i][rounds / 2];
          std::printf("%-5s %5zu KiB %9d  %-6s %9.0f %9.0f %9.0f %7.2f %12.1f\n", name.c_str(),
                      static_cast<size_t>(kib), in_flight, i == 0 ? "stream" : "unary", r.median_us, r.p99_us,
                      r.calls_per_s, r.calls_per_s * static_cast<double>(kib << 10) / 1e9, r.client_cpu_us);
          std::fflush(stdout);
        }
      }
    }
  }
  for (const pid_t child : children) {
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
  unlink(unix_path.c_str());
  return 0;
}

}  // namespace
}  // namespace tandem::rpc

int main(int argc, char** argv) { return tandem::rpc::Main(argc, argv); }
