// SPDX-License-Identifier: Apache-2.0
// `tandem bench inference`: measures the actions that an inference server chooses for many actors.

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/logging.h"
#include "base/number_flag.h"
#include "base/random.h"
#include "base/status.h"
#include "base/suggest.h"
#include "bench/harness/measure.h"
#include "bench/suites/commands.h"
#include "bench/suites/own_processes.h"
#include "nlohmann/json.hpp"
#include "rpc/channel.h"
#include "rpc/connect.h"
#include "rpc/server.h"
#include "weights/client/local_weights.h"
#include "weights/client/publisher.h"
#include "weights/store/model_store.h"
#include "worker/nn/gemm.h"
#include "worker/rl/actor/unroll_actor.h"
#include "worker/rl/envs/registry.h"
#include "worker/rl/inference/inference_server.h"
#include "worker/rl/inference/remote_policy.h"
#include "worker/rl/policy/policy_weights.h"

namespace tandem::bench {
namespace {

struct InferenceFlags {
  std::string transports = "shm,tcp";
  std::string actors = "1,8";
  int rows = 8;
  int width = 64;
  double time_ms = 1000;
  bool json = false;
};

constexpr absl::Duration kActTimeout = absl::Seconds(30);

// An inference server in a process of its own, which ends with this object.
class ServerOfPolicy {
 public:
  // Must be called while this process has one thread.
  static absl::StatusOr<std::unique_ptr<ServerOfPolicy>> Start(int width);
  ~ServerOfPolicy() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  const std::string& address() const { return address_; }

 private:
  ServerOfPolicy() = default;

  pid_t pid_ = -1;
  std::string address_;
};

rl::PolicyOptions PolicyOf(int width) { return {.hidden = {width, width}}; }

absl::StatusOr<rl::EnvironmentSpec> CartPole() {
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<rl::Environment> environment,
                          rl::MakeEnvironment(rl::Environments().Default("cartpole")));
  return environment->spec();
}

// Serves a policy of random weights until the process is killed; writes the port to `out`.
absl::Status ServePolicy(int width, int out) {
  worker::UseOneBlasThread();
  TANDEM_ASSIGN_OR_RETURN(const rl::EnvironmentSpec environment, CartPole());
  rl::ActorCritic policy(environment, PolicyOf(width), /*seed=*/1);
  weights::ModelStore store;
  weights::LocalWeights local(&store);
  const absl::Time deadline = MonotonicNow() + kActTimeout;
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<weights::Publisher> publisher,
                          weights::Publisher::Create(&local, {.model = rl::kPolicyModel}, deadline));
  TANDEM_RETURN_IF_ERROR(publisher->Publish(rl::TensorsOf(policy), {}, deadline).status());
  rl::InferenceServer server({.policy = PolicyOf(width)}, environment, &local);
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<rpc::Server> listening,
                          rpc::Server::Start({.listen = "127.0.0.1:0"}, {server.service()}));
  const std::string line = absl::StrCat(listening->port(), "\n");
  if (::write(out, line.data(), line.size()) != static_cast<ssize_t>(line.size()))
    return absl::ErrnoToStatus(errno, "write");
  for (;;) ::pause();
}

absl::StatusOr<std::unique_ptr<ServerOfPolicy>> ServerOfPolicy::Start(int width) {
  int fds[2];
  if (::pipe(fds) != 0) return absl::ErrnoToStatus(errno, "pipe");
  std::unique_ptr<ServerOfPolicy> server(new ServerOfPolicy);
  server->pid_ = ::fork();
  if (server->pid_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::close(fds[0]);
    LogError(ServePolicy(width, fds[1]).message());
    ::_exit(1);
  }
  ::close(fds[1]);
  std::string port;
  char byte;
  while (::read(fds[0], &byte, 1) == 1 && byte != '\n') port.push_back(byte);
  ::close(fds[0]);
  if (server->pid_ < 0 || port.empty()) return absl::InternalError("the inference server did not start");
  server->address_ = absl::StrCat("127.0.0.1:", port);
  return server;
}

struct InferenceCase {
  std::string transport;
  int actors = 1;
};

absl::StatusOr<std::vector<InferenceCase>> InferenceCasesOf(const InferenceFlags& flags) {
  const std::vector<absl::string_view> all = {"shm", "tcp"};
  constexpr int kMostActors = 256;
  std::vector<InferenceCase> cases;
  for (const absl::string_view transport : absl::StrSplit(flags.transports, ',')) {
    if (std::find(all.begin(), all.end(), transport) == all.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--transport: there is no '", transport, "'", DidYouMean(transport, all)));
    }
    for (const absl::string_view text : absl::StrSplit(flags.actors, ',')) {
      int actors = 0;
      if (!absl::SimpleAtoi(text, &actors) || actors < 1 || actors > kMostActors) {
        return absl::InvalidArgumentError(
            absl::StrCat("--actors: '", text, "' is not a whole number from 1 to ", kMostActors));
      }
      cases.push_back({.transport = std::string(transport), .actors = actors});
    }
  }
  return cases;
}

// One actor, which asks for actions again and again.
struct CallingActor {
  std::unique_ptr<rpc::Channel> connected;  // until the thread begins
  std::vector<double> calls_us;
  absl::Status status;

  absl::Status Call(size_t rows, uint64_t seed, absl::Time begin, absl::Time end) {
    rl::RemotePolicy policy(std::move(connected));
    TANDEM_ASSIGN_OR_RETURN(const rl::EnvironmentSpec environment, CartPole());
    CounterRandom random(seed, 1);
    std::vector<float> observations(rows * environment.observation_size);
    for (float& value : observations) value = static_cast<float>(random.Normal());
    std::vector<float> actions(rows), log_probabilities(rows);
    for (absl::Time now = MonotonicNow(); now < end || calls_us.empty();) {
      TANDEM_RETURN_IF_ERROR(policy
                                 .Act(observations, rows, absl::MakeSpan(actions),
                                      absl::MakeSpan(log_probabilities), now + kActTimeout)
                                 .status());
      const absl::Time after = MonotonicNow();
      if (now >= begin) calls_us.push_back(absl::ToDoubleMicroseconds(after - now));
      now = after;
    }
    return absl::OkStatus();
  }
};

absl::StatusOr<v1::InferenceStatistics> StatisticsOf(rpc::Channel& channel) {
  v1::InferenceStatistics statistics;
  TANDEM_RETURN_IF_ERROR(rpc::CallProto(channel, "/tandem.v1.Inference/GetStatistics",
                                        v1::InferenceStatisticsRequest(), &statistics,
                                        {.timeout = kActTimeout, .idempotent = true}));
  return statistics;
}

absl::Status MeasureInference(const InferenceCase& c, const InferenceFlags& flags,
                              const std::string& address) {
  const rpc::ConnectOptions how = {.transport = c.transport == "shm" ? "shm" : "grpc"};
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<rpc::Channel> observer, rpc::Connect(address, how));
  std::vector<CallingActor> actors(static_cast<size_t>(c.actors));
  for (CallingActor& actor : actors) {
    TANDEM_ASSIGN_OR_RETURN(actor.connected, rpc::Connect(address, how));
  }
  TANDEM_ASSIGN_OR_RETURN(const v1::InferenceStatistics before, StatisticsOf(*observer));
  const absl::Duration time = absl::Milliseconds(flags.time_ms);
  const absl::Time begin = MonotonicNow() + time / 5, end = begin + time;
  std::vector<std::thread> threads;
  for (size_t i = 0; i < actors.size(); ++i) {
    threads.emplace_back(
        [&, i] { actors[i].status = actors[i].Call(static_cast<size_t>(flags.rows), i, begin, end); });
  }
  for (std::thread& thread : threads) thread.join();
  TANDEM_ASSIGN_OR_RETURN(const v1::InferenceStatistics after, StatisticsOf(*observer));
  std::vector<double> calls_us;
  for (const CallingActor& actor : actors) {
    TANDEM_RETURN_IF_ERROR(actor.status);
    calls_us.insert(calls_us.end(), actor.calls_us.begin(), actor.calls_us.end());
  }
  const double calls_per_s = static_cast<double>(calls_us.size()) / absl::ToDoubleSeconds(time);
  const double batches = static_cast<double>(after.batches() - before.batches());
  const double batch_rows = static_cast<double>(after.rows() - before.rows()) / batches;
  const double compute_us = 1e6 *
                            (after.compute_seconds_mean() * static_cast<double>(after.batches()) -
                             before.compute_seconds_mean() * static_cast<double>(before.batches())) /
                            batches;
  const Timing timing = Summarize(std::move(calls_us));
  if (flags.json) {
    std::puts(nlohmann::ordered_json{{"transport", c.transport},
                                     {"actors", c.actors},
                                     {"rows", flags.rows},
                                     {"calls_per_s", calls_per_s},
                                     {"batch_rows", batch_rows},
                                     {"compute_us", compute_us},
                                     {"median_us", timing.median_us},
                                     {"p99_us", timing.p99_us}}
                  .dump()
                  .c_str());
  } else {
    std::puts(absl::StrFormat("%-9s %6d %5d %10.0f %11.1f %11.1f %10.1f %9.1f", c.transport, c.actors,
                              flags.rows, calls_per_s, batch_rows, compute_us, timing.median_us,
                              timing.p99_us)
                  .c_str());
  }
  std::fflush(stdout);
  return absl::OkStatus();
}

absl::Status RunInferenceBench(const InferenceFlags& flags) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<InferenceCase> cases, InferenceCasesOf(flags));
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<ServerOfPolicy> server, ServerOfPolicy::Start(flags.width));
  if (!flags.json)
    std::puts("transport actors  rows    calls/s  batch rows  compute us  median us    p99 us");
  for (const InferenceCase& c : cases) TANDEM_RETURN_IF_ERROR(MeasureInference(c, flags, server->address()));
  return absl::OkStatus();
}

}  // namespace

void AddBenchInference(CLI::App* bench, CommandContext* context) {
  CLI::App* command =
      bench->add_subcommand("inference", "Time an inference server of reinforcement learning");
  command->footer(
      "Each actor asks for the actions of its observations, again and again, as an actor of CartPole does. "
      "batch rows: observations that the server computed at once, on average. compute us: the time of a "
      "batch; "
      "median us less this is what asking costs.");
  auto flags = std::make_shared<InferenceFlags>();
  command->add_option("--transport", flags->transports, "shm, tcp")->capture_default_str();
  command->add_option("--actors", flags->actors, "Actors, each a thread with a connection of its own")
      ->capture_default_str();
  LimitTo(Between(1, 4096),
          command->add_option("--rows", flags->rows, "Observations of a call")->capture_default_str());
  LimitTo(Between(1, 4096), command->add_option("--hidden", flags->width, "Width of the policy's two layers")
                                ->capture_default_str());
  LimitTo(Between(1, 3600e3),
          command->add_option("--time-per-case", flags->time_ms, "Milliseconds")->capture_default_str());
  command->add_flag("--json", flags->json, "One JSON object a line");
  command->callback([flags, context] {
    const absl::Status status = RunInferenceBench(*flags);
    context->exit_code = status.ok() ? 0 : ReportBench("bench inference", status);
  });
}

}  // namespace tandem::bench
