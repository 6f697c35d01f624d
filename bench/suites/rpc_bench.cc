// SPDX-License-Identifier: Apache-2.0
#include "bench/suites/rpc_bench.h"

#include <chrono>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/status.h"
#include "base/timed_wait.h"
#include "cluster/environment.h"
#include "cluster/rendezvous/store_directory.h"
#include "rpc/remote/rpc_agent.h"

namespace tandem::bench {
namespace {

using cluster::StoreDirectory;
using rpc::remote::Function;
using rpc::remote::Functions;
using rpc::remote::Future;
using rpc::remote::RpcAgent;
using rpc::remote::RpcAgentOptions;
using rpc::remote::Tensor;
using Clock = std::chrono::steady_clock;

constexpr Function<void()> kEmpty{"empty"};
constexpr Function<void()> kPooled{"pooled"};
constexpr Function<Tensor(Tensor)> kEcho{"echo"};
constexpr absl::Duration kStepTimeout = absl::Minutes(1);
constexpr absl::Duration kRunTimeout = absl::Hours(24);
constexpr double kWarmUp = 0.2;  // fraction of the time of a case

Functions BenchFunctions() {
  Functions functions;
  functions.Add(kEmpty, [] {}, {.run_inline = true});
  functions.Add(kPooled, [] {});
  functions.Add(kEcho, [](Tensor tensor) { return tensor; }, {.run_inline = true});
  return functions;
}

RpcAgentOptions OptionsFor(const std::string& transport, const std::string& role,
                           const RpcBenchOptions& options) {
  RpcAgentOptions agent;
  agent.name = absl::StrCat(role, "/", transport);
  agent.transport = transport == "shm" ? "shm" : "grpc";
  if (transport == "unix" && role == "server") {
    agent.listen = absl::StrCat("unix:", options.socket_directory, "/rpc");
  }
  return agent;
}

// Makes the calls of one case, several at a time.
class RpcCalls {
 public:
  RpcCalls(RpcAgent* agent, std::string to, const RpcCase& rpc_case)
      : agent_(agent), to_(std::move(to)), case_(rpc_case), latencies_(rpc_case.in_flight) {
    if (case_.bytes > 0) {
      std::vector<uint8_t> values(case_.bytes);
      for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<uint8_t>(i * 2654435761u >> 13);
      sent_ = Tensor::Of(std::move(values));
    }
  }

  absl::StatusOr<RpcResult> Run(absl::Duration time) {
    const Clock::time_point begin = Clock::now();
    end_ = begin + absl::ToChronoNanoseconds(time);
    if (case_.in_flight == 1) {
      while (Clock::now() < end_ && failure_.ok()) CallBlocking();
    } else {
      running_ = case_.in_flight;
      for (int slot = 0; slot < case_.in_flight; ++slot) Next(slot);
      absl::MutexLock lock(&mutex_);
      const auto none = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return running_ == 0; };
      if (!AwaitFor(&mutex_, absl::Condition(&none), time + kStepTimeout)) {
        return absl::DeadlineExceededError("calls are not answered");
      }
    }
    TANDEM_RETURN_IF_ERROR(failure_);
    RpcResult result;
    result.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    for (auto& each : latencies_) {
      result.latencies_us.insert(result.latencies_us.end(), each.begin(), each.end());
      each.clear();
    }
    return result;
  }

 private:
  // Reads some of the response, as a real caller would.
  absl::Status Check(const absl::StatusOr<Tensor>& back) {
    TANDEM_RETURN_IF_ERROR(back.status());
    const char* const got = static_cast<const char*>(back->data());
    const char* const want = static_cast<const char*>(sent_.data());
    if (back->bytes() != sent_.bytes() || std::memcmp(got, want, std::min<size_t>(64, sent_.bytes())) != 0 ||
        got[sent_.bytes() - 1] != want[sent_.bytes() - 1]) {
      return absl::DataLossError("an echo brought back something else");
    }
    return absl::OkStatus();
  }

  Future<void> Start() {
    if (case_.kind == "empty") return agent_->RpcAsync(to_, kEmpty);
    if (case_.kind == "pooled") return agent_->RpcAsync(to_, kPooled);
    return agent_->RpcAsync(to_, kEcho, sent_).Then([this](const absl::StatusOr<Tensor>& back) {
      return Check(back);
    });
  }

  void CallBlocking() {
    const Clock::time_point begin = Clock::now();
    failure_ = case_.kind == "empty"    ? agent_->RpcSync(to_, kEmpty)
               : case_.kind == "pooled" ? agent_->RpcSync(to_, kPooled)
                                        : Check(agent_->RpcSync(to_, kEcho, sent_));
    latencies_[0].push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
  }

  // The response of a slot's call starts its next call. If the response is already there, the loop makes the
  // next call instead of a callback, so that the stack does not grow.
  void Next(int slot) {
    while (true) {
      const Clock::time_point begin = Clock::now();
      const Future<void> future = Start();
      if (!future.ready()) {
        future.Then([this, slot, begin](const absl::Status& status) {
          if (FinishCall(slot, begin, status)) Next(slot);
        });
        return;
      }
      if (!FinishCall(slot, begin, future.Wait())) return;
    }
  }

  bool FinishCall(int slot, Clock::time_point begin, const absl::Status& status) {
    const Clock::time_point now = Clock::now();
    latencies_[static_cast<size_t>(slot)].push_back(
        std::chrono::duration<double, std::micro>(now - begin).count());
    if (status.ok() && now < end_) return true;
    absl::MutexLock lock(&mutex_);
    failure_.Update(status);
    --running_;
    return false;
  }

  RpcAgent* const agent_;
  const rpc::remote::CallTarget to_;
  const RpcCase case_;
  Tensor sent_;
  Clock::time_point end_;
  std::vector<std::vector<double>> latencies_;  // one per slot
  absl::Mutex mutex_;
  absl::Status failure_;  // used by one thread (blocking calls), else under the mutex
  int running_ ABSL_GUARDED_BY(mutex_) = 0;
};

absl::Status Measure(StoreDirectory* directory, const std::vector<RpcCase>& cases,
                     const RpcBenchOptions& options) {
  if (!options.json) PrintRpcHeader();
  std::unique_ptr<RpcAgent> agent;
  std::string transport;
  for (const RpcCase& c : cases) {
    const std::string to = absl::StrCat(c.transport == "direct" ? "client/" : "server/", c.transport);
    if (c.transport != transport) {
      agent.reset();
      transport = c.transport;
      TANDEM_ASSIGN_OR_RETURN(
          agent, RpcAgent::Start(OptionsFor(transport, "client", options), directory, BenchFunctions()));
      TANDEM_RETURN_IF_ERROR(agent->RpcSync(rpc::remote::CallTarget(to, {.timeout = kStepTimeout}), kEmpty));
      if (agent->TransportTo(to) != transport) {
        return absl::FailedPreconditionError(
            absl::StrCat("--transport ", transport, ": calls are carried by ", agent->TransportTo(to)));
      }
    }
    RpcCalls calls(agent.get(), to, c);
    TANDEM_RETURN_IF_ERROR(calls.Run(kWarmUp * options.time_per_case).status());
    TANDEM_ASSIGN_OR_RETURN(RpcResult result, calls.Run(options.time_per_case));
    PrintRpcResult(c, std::move(result), options.json);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunRpcBench(const std::vector<RpcCase>& cases, const RpcBenchOptions& options) {
  TANDEM_ASSIGN_OR_RETURN(const cluster::Environment env, cluster::Environment::FromEnv());
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<cluster::JobStore> store,
                          cluster::OpenStore(env, kStepTimeout));
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<StoreDirectory> directory,
                          StoreDirectory::Open(store->store()));
  constexpr char kDone[] = "bench/rpc/done";
  if (env.rank == 0) {
    const absl::Status measured = Measure(directory.get(), cases, options);
    // Also after an error, so that the server ends by itself.
    const absl::Status told = store->store()->Set(kDone, "");
    return measured.ok() ? told : measured;
  }
  std::vector<std::unique_ptr<RpcAgent>> servers;
  for (const char* transport : {"tcp", "unix", "shm"}) {
    TANDEM_ASSIGN_OR_RETURN(auto agent, RpcAgent::Start(OptionsFor(transport, "server", options),
                                                        directory.get(), BenchFunctions()));
    servers.push_back(std::move(agent));
  }
  return store->store()->Get(kDone, kRunTimeout).status();
}

}  // namespace tandem::bench
