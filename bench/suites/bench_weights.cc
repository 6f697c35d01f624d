// SPDX-License-Identifier: Apache-2.0
// `tandem bench weights`: measures publishing, pulling and asking for the head of a weight store.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/number_flag.h"
#include "base/status.h"
#include "base/suggest.h"
#include "bench/harness/measure.h"
#include "bench/suites/commands.h"
#include "bench/suites/own_processes.h"
#include "bench/suites/server_process.h"
#include "nlohmann/json.hpp"
#include "weights/client/local_weights.h"
#include "weights/client/publisher.h"
#include "weights/client/remote_weights.h"
#include "weights/store/model_store.h"

namespace tandem::bench {
namespace {

constexpr char kModel[] = "bench";
constexpr uint64_t kLargestModel = uint64_t{1} << 30;
constexpr absl::Duration kCallTimeout = absl::Minutes(1);

struct WeightsFlags {
  std::string transports = "in-process,shm,tcp";
  std::string bytes = "1048576,16777216,67108864,268435456";
  double time_ms = 500;
  bool json = false;
};

struct WeightsCase {
  std::string transport;
  uint64_t bytes = 0;  // of the model
};

absl::StatusOr<std::vector<WeightsCase>> CasesOf(const WeightsFlags& flags) {
  const std::vector<absl::string_view> all = {"in-process", "shm", "tcp"};
  std::vector<WeightsCase> cases;
  for (const absl::string_view transport : absl::StrSplit(flags.transports, ',')) {
    if (std::find(all.begin(), all.end(), transport) == all.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--transport: there is no '", transport, "'", DidYouMean(transport, all)));
    }
    for (const absl::string_view text : absl::StrSplit(flags.bytes, ',')) {
      uint64_t bytes = 0;
      if (!absl::SimpleAtoi(text, &bytes) || bytes < 4 || bytes > kLargestModel || bytes % 4 != 0) {
        return absl::InvalidArgumentError(
            absl::StrCat("--bytes: '", text, "' is not a multiple of 4 from 4 to ", kLargestModel));
      }
      cases.push_back({.transport = std::string(transport), .bytes = bytes});
    }
  }
  return cases;
}

// A store keeps 4 versions. Until it has them each one gets new memory, whose page faults cost more than the
// rest of the call.
constexpr int kWarmUpCalls = 6;

// Calls `call` for a fifth of the time, and at least kWarmUpCalls times, to warm up, then measures, and
// prints a line. `moved`: each call moves the values of the model.
absl::Status MeasureCalls(const WeightsCase& c, const char* op, bool moved, const WeightsFlags& flags,
                          const std::function<absl::Status()>& call) {
  const absl::Duration time = absl::Milliseconds(flags.time_ms);
  const absl::Time warm = MonotonicNow() + time / 5;
  for (int calls = 0; calls < kWarmUpCalls || MonotonicNow() < warm; ++calls) TANDEM_RETURN_IF_ERROR(call());
  std::vector<double> calls_us;
  const absl::Time begin = MonotonicNow();
  absl::Time now = begin;
  do {
    TANDEM_RETURN_IF_ERROR(call());
    const absl::Time after = MonotonicNow();
    calls_us.push_back(absl::ToDoubleMicroseconds(after - now));
    now = after;
  } while (now < begin + time);
  const double calls_per_s = static_cast<double>(calls_us.size()) / absl::ToDoubleSeconds(now - begin);
  const double gbps = moved ? calls_per_s * static_cast<double>(c.bytes) / 1e9 : 0;
  const Timing timing = Summarize(std::move(calls_us));
  if (flags.json) {
    nlohmann::ordered_json line = {
        {"transport", c.transport}, {"bytes", c.bytes}, {"op", op}, {"calls_per_s", calls_per_s}};
    if (moved) line["gbps"] = gbps;
    line["median_us"] = timing.median_us;
    line["p99_us"] = timing.p99_us;
    std::puts(line.dump().c_str());
  } else {
    std::puts(absl::StrFormat("%-11s %-8s %11d %9s %11.1f %9.1f", c.transport, op, c.bytes,
                              moved ? absl::StrFormat("%.3f", gbps) : "", timing.median_us, timing.p99_us)
                  .c_str());
  }
  std::fflush(stdout);
  return absl::OkStatus();
}

absl::Status MeasureWeights(const WeightsCase& c, const WeightsFlags& flags, weights::Weights* weights) {
  const auto deadline = [] { return MonotonicNow() + kCallTimeout; };
  const std::vector<float> values(c.bytes / sizeof(float), 0.5f);
  const weights::NamedTensor tensors[] = {
      {.name = "values", .shape = {static_cast<int64_t>(values.size())}, .values = values}};
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<weights::Publisher> publisher,
                          weights::Publisher::Create(weights, {.model = kModel}, deadline()));
  TANDEM_RETURN_IF_ERROR(MeasureCalls(c, "publish", true, flags,
                                      [&] { return publisher->Publish(tensors, {}, deadline()).status(); }));
  // A reader in this process gets a pointer to the published values.
  if (c.transport != "in-process") {
    TANDEM_RETURN_IF_ERROR(MeasureCalls(c, "pull", true, flags, [&]() -> absl::Status {
      TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<const weights::Model> model,
                              weights->Newer(kModel, {}, deadline()));
      if (model == nullptr || model->values().size() != values.size())
        return absl::InternalError("a reader did not get the published model");
      return absl::OkStatus();
    }));
  }
  return MeasureCalls(c, "head", false, flags, [&] { return weights->Head(kModel, deadline()).status(); });
}

absl::Status RunWeightsBench(const WeightsFlags& flags) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<WeightsCase> cases, CasesOf(flags));
  if (!flags.json) std::puts("transport   op             bytes      GB/s   median us    p99 us");
  for (const WeightsCase& c : cases) {
    if (c.transport == "in-process") {
      weights::ModelStore store;
      weights::LocalWeights local(&store);
      TANDEM_RETURN_IF_ERROR(MeasureWeights(c, flags, &local));
      continue;
    }
    TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<ServerProcess> server, ServerProcess::Start("weights"));
    TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<rpc::Channel> channel, server->Connect(c.transport == "shm"));
    weights::RemoteWeights remote(std::move(channel));
    TANDEM_RETURN_IF_ERROR(MeasureWeights(c, flags, &remote));
  }
  return absl::OkStatus();
}

}  // namespace

void AddBenchWeights(CLI::App* bench, CommandContext* context) {
  CLI::App* command = bench->add_subcommand("weights", "Time a weight store in this process and in a server");
  command->footer(
      "publish: a whole version, with its digest, until it is committed. pull: a reader that has no version "
      "gets "
      "the newest one and checks its digest. head: asks for the number of the newest version. GB/s (gbps "
      "with "
      "--json): 10^9 bytes of values a second.");
  auto flags = std::make_shared<WeightsFlags>();
  command->add_option("--transport", flags->transports, "in-process, shm, tcp")->capture_default_str();
  command->add_option("--bytes", flags->bytes, "Of the model's values")->capture_default_str();
  LimitTo(Between(1, 3600e3),
          command->add_option("--time-per-case", flags->time_ms, "Milliseconds")->capture_default_str());
  command->add_flag("--json", flags->json, "One JSON object a line");
  command->callback([flags, context] {
    const absl::Status status = RunWeightsBench(*flags);
    context->exit_code = status.ok() ? 0 : ReportBench("bench weights", status);
  });
}

}  // namespace tandem::bench
