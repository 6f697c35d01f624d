// SPDX-License-Identifier: Apache-2.0
// `tandem bench subscription`: how long changes take to reach a subscriber, what the first copy takes, and
// how much slower pushes are meanwhile.

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/base/thread_annotations.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/number_flag.h"
#include "base/random.h"
#include "base/status.h"
#include "bench/suites/commands.h"
#include "bench/suites/own_processes.h"
#include "nlohmann/json.hpp"
#include "ps/client/client.h"
#include "ps/server/parameter_server.h"
#include "ps/subscription/subscription.h"
#include "ps/table.h"
#include "rpc/transport/loopback.h"

namespace tandem::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kTable[] = "rows";
constexpr uint64_t kMarkId = 12345;  // of the row of Marks
constexpr absl::Duration kMarkEvery = absl::Milliseconds(10);
constexpr absl::Duration kWait = absl::Seconds(30);

struct SubscriptionBenchOptions {
  uint64_t rows = 1'000'000;
  uint32_t dim = 16;
  uint64_t batch = 4096;    // ids of a push
  double rate = 50;         // pushes a second; 0: as many as there can be
  double seconds = 3;       // of each phase
  int rounds = 5;           // of a phase without a subscriber and one with it
  double interval_ms = 50;  // SubscriptionOptions::interval
  bool json = false;
};

struct SubscriptionBenchResult {
  double first_s = 0;            // until the subscriber had every row
  uint64_t first_bytes = 0;      // of their numbers
  std::vector<double> scan_ms;   // passes that found one changed row
  std::vector<double> fresh_ms;  // from the acknowledgement of a push to its row at the subscriber
  std::vector<double> pushed_without, pushed_with;  // rows a second, of each round
  std::vector<double> push_ms_without, push_ms_with;
  double subscribed_s = 0;  // in which fresh_ms was measured
  uint64_t given_rows = 0;  // in that time
};

double Quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1, static_cast<size_t>(q * static_cast<double>(values.size())))];
}

double Milliseconds(absl::Duration duration) { return absl::ToDoubleMilliseconds(duration); }

// A server in this process with a full table, and its clients.
class FollowedServer {
 public:
  static absl::StatusOr<std::unique_ptr<FollowedServer>> Start(const SubscriptionBenchOptions& options) {
    auto job = std::unique_ptr<FollowedServer>(new FollowedServer(options.dim));
    v1::TableConfig config = ps::EmbeddingTable(kTable, options.dim, ps::Sgd(1.0f), ps::Zeros());
    config.set_num_workers(2);
    *config.mutable_update_mode() = ps::Async();
    for (uint32_t worker = 0; worker < 2; ++worker) {
      std::vector<std::unique_ptr<rpc::Channel>> channels;
      channels.push_back(job->Connect());
      TANDEM_ASSIGN_OR_RETURN(job->clients_[worker],
                              ps::Client::Connect(std::move(channels), {.worker = worker, .timeout = kWait}));
      TANDEM_RETURN_IF_ERROR(job->clients_[worker]->CreateTable(config));
      TANDEM_RETURN_IF_ERROR(job->clients_[worker]->StartPushEpoch());
    }
    std::vector<uint64_t> ids;
    for (uint64_t first = 0; first < options.rows; first += ids.size()) {
      ids.resize(std::min<uint64_t>(65536, options.rows - first));
      for (size_t i = 0; i < ids.size(); ++i) ids[i] = Mix64(first + i);
      TANDEM_RETURN_IF_ERROR(job->CreateRows(ids));
    }
    TANDEM_RETURN_IF_ERROR(job->CreateRows({kMarkId}));
    return job;
  }
  std::unique_ptr<rpc::Channel> Connect() { return rpc::ConnectLoopback(services_); }
  absl::Status CreateRows(const std::vector<uint64_t>& ids) {
    std::vector<float> rows(ids.size() * dim_);
    return clients_[0]->Pull(0, /*read_only=*/false, {{kTable, ids, rows.data()}}).status();
  }
  absl::Status Push(uint32_t worker, const std::vector<uint64_t>& ids, const float* gradients) {
    return clients_[worker]->Push(steps_[worker]++, {{.table = kTable, .ids = ids, .gradients = gradients}});
  }

 private:
  explicit FollowedServer(uint32_t dim)
      : dim_(dim),
        server_(ps::ParameterServerOptions()),
        services_(std::make_shared<const std::vector<rpc::Service>>(
            std::vector<rpc::Service>{server_.service(), server_.subscriptions_service()})) {}

  const uint32_t dim_;
  ps::ParameterServer server_;
  const std::shared_ptr<const std::vector<rpc::Service>> services_;
  std::unique_ptr<ps::Client> clients_[2];
  uint64_t steps_[2] = {};
};

// Pushes random ids for a while. Returns the rows pushed a second; adds the time of each push.
absl::StatusOr<double> PushFor(FollowedServer& job, const SubscriptionBenchOptions& options, uint64_t round,
                               std::vector<double>* push_ms) {
  CounterRandom random(5, round);
  std::vector<uint64_t> ids(options.batch);
  const std::vector<float> gradients(options.batch * options.dim, -1.0f);
  const absl::Time began = MonotonicNow();
  const absl::Time end = began + absl::Seconds(options.seconds);
  uint64_t pushes = 0;
  for (absl::Time now = began; now < end; now = MonotonicNow(), ++pushes) {
    for (uint64_t& id : ids) id = Mix64(random.Below(options.rows));
    TANDEM_RETURN_IF_ERROR(job.Push(0, ids, gradients.data()));
    push_ms->push_back(Milliseconds(MonotonicNow() - now));
    if (options.rate <= 0) continue;
    const absl::Time next = began + absl::Seconds(static_cast<double>(pushes + 1) / options.rate);
    if (const absl::Duration left = std::min(next, end) - MonotonicNow(); left > absl::ZeroDuration()) {
      std::this_thread::sleep_for(absl::ToChronoNanoseconds(left));
    }
  }
  return static_cast<double>(pushes * options.batch) / absl::ToDoubleSeconds(MonotonicNow() - began);
}

// Pushes one row again and again from a thread of its own, and notes when each push was acknowledged. That
// row counts the pushes.
class Marks {
 public:
  Marks(FollowedServer* job, uint32_t dim) : job_(*job), gradient_(dim, -1.0f), thread_([this] { Run(); }) {}
  ~Marks() { Stop().IgnoreError(); }

  absl::Status Stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
    absl::MutexLock lock(&mutex_);
    return status_;
  }
  // The subscriber has got the row with this value. Adds how old each push is that it had not seen before.
  void Seen(double value, std::vector<double>* fresh_ms) {
    const absl::Time now = MonotonicNow();
    absl::MutexLock lock(&mutex_);
    // The value may count a push that is not acknowledged yet.
    const size_t seen = std::min(acknowledged_.size(), static_cast<size_t>(value - base_));
    for (; next_ < seen; ++next_) fresh_ms->push_back(Milliseconds(now - acknowledged_[next_]));
  }
  // The value of the row before the first push.
  void SetBase(double base) {
    absl::MutexLock lock(&mutex_);
    base_ = base;
  }
  void Begin() { begin_ = true; }

 private:
  void Run() {
    absl::Status status;
    while (!stop_ && status.ok()) {
      if (begin_) {
        status = job_.Push(1, {kMarkId}, gradient_.data());
        absl::MutexLock lock(&mutex_);
        acknowledged_.push_back(MonotonicNow());
      }
      std::this_thread::sleep_for(absl::ToChronoNanoseconds(kMarkEvery));
    }
    absl::MutexLock lock(&mutex_);
    status_ = status;
  }

  FollowedServer& job_;
  const std::vector<float> gradient_;
  std::atomic<bool> stop_{false}, begin_{false};
  absl::Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::vector<absl::Time> acknowledged_ ABSL_GUARDED_BY(mutex_);
  size_t next_ ABSL_GUARDED_BY(mutex_) = 0;
  double base_ ABSL_GUARDED_BY(mutex_) = 0;
  std::thread thread_;
};

// Reads changes until the subscription has caught up. Calls visit(row) for the row of the marks.
template <typename Visit>
absl::Status ReadOn(ps::Subscription& subscription, uint64_t* bytes, uint64_t* rows, const Visit& visit) {
  do {
    absl::StatusOr<ps::ChangeBatch> batch = subscription.Next(kWait);
    TANDEM_RETURN_IF_ERROR(batch.status());
    for (const ps::RowChanges& changes : batch->changes) {
      *bytes += changes.rows.size() * sizeof(float);
      *rows += changes.ids.size();
      const auto mark = std::lower_bound(changes.ids.begin(), changes.ids.end(), kMarkId);
      if (mark == changes.ids.end() || *mark != kMarkId) continue;
      visit(changes.rows[static_cast<size_t>(mark - changes.ids.begin()) * changes.dim]);
    }
  } while (!subscription.caught_up());
  return absl::OkStatus();
}

absl::StatusOr<SubscriptionBenchResult> Measure(const SubscriptionBenchOptions& options) {
  SubscriptionBenchResult result;
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<FollowedServer> job, FollowedServer::Start(options));
  const std::vector<float> gradient(options.dim, -1.0f);
  // The subscriber of the first phase only scans: no pause between passes.
  double value = 0;
  const auto note = [&value](double seen) { value = seen; };
  std::string position;
  uint64_t rows = 0;
  {
    std::vector<std::unique_ptr<rpc::Channel>> channels;
    channels.push_back(job->Connect());
    TANDEM_ASSIGN_OR_RETURN(
        const auto subscription,
        ps::Subscription::Open(std::move(channels), {.tables = {kTable}, .interval = absl::ZeroDuration()}));
    const absl::Time began = MonotonicNow();
    TANDEM_RETURN_IF_ERROR(ReadOn(*subscription, &result.first_bytes, &rows, note));
    result.first_s = absl::ToDoubleSeconds(MonotonicNow() - began);
    for (int i = 0; i < 20; ++i) {
      TANDEM_RETURN_IF_ERROR(job->Push(1, {kMarkId}, gradient.data()));
      const double before = value;
      const absl::Time pushed = MonotonicNow();
      uint64_t bytes = 0;
      while (value == before) TANDEM_RETURN_IF_ERROR(ReadOn(*subscription, &bytes, &rows, note));
      result.scan_ms.push_back(Milliseconds(MonotonicNow() - pushed));
    }
    position = subscription->position();
  }
  for (int round = 0; round < options.rounds; ++round) {
    TANDEM_ASSIGN_OR_RETURN(
        result.pushed_without.emplace_back(),
        PushFor(*job, options, 2 * static_cast<uint64_t>(round), &result.push_ms_without));
    std::vector<std::unique_ptr<rpc::Channel>> channels;
    channels.push_back(job->Connect());
    TANDEM_ASSIGN_OR_RETURN(
        const auto subscription,
        ps::Subscription::Open(
            std::move(channels),
            {.tables = {kTable}, .position = position, .interval = absl::Milliseconds(options.interval_ms)}));
    uint64_t bytes = 0;
    TANDEM_RETURN_IF_ERROR(ReadOn(*subscription, &bytes, &rows, note));
    Marks marks(job.get(), options.dim);
    marks.SetBase(value);
    marks.Begin();
    std::atomic<bool> done{false};
    absl::Status read;
    const absl::Time began = MonotonicNow();
    std::thread reader([&] {
      while (!done && read.ok()) {
        const auto seen = [&](double now) {
          value = now;
          marks.Seen(now, &result.fresh_ms);
        };
        read = ReadOn(*subscription, &bytes, &result.given_rows, seen);
        if (absl::IsCancelled(read)) read = absl::OkStatus();
      }
    });
    absl::StatusOr<double> pushed =
        PushFor(*job, options, 2 * static_cast<uint64_t>(round) + 1, &result.push_ms_with);
    done = true;
    const absl::Status marked = marks.Stop();
    subscription->Cancel();
    reader.join();
    result.subscribed_s += absl::ToDoubleSeconds(MonotonicNow() - began);
    TANDEM_RETURN_IF_ERROR(pushed.status());
    TANDEM_RETURN_IF_ERROR(marked);
    TANDEM_RETURN_IF_ERROR(read);
    result.pushed_with.push_back(*pushed);
    position = subscription->position();
  }
  return result;
}

// The median of the rounds' ratios: with a subscriber to without.
double Ratio(const SubscriptionBenchResult& result) {
  std::vector<double> ratios;
  for (size_t i = 0; i < result.pushed_with.size(); ++i) {
    ratios.push_back(result.pushed_with[i] / result.pushed_without[i]);
  }
  return Quantile(std::move(ratios), 0.5);
}

void PrintSubscriptionText(const SubscriptionBenchOptions& options, const SubscriptionBenchResult& result) {
  const auto line = [](const char* name, const std::string& value) {
    std::fputs(absl::StrFormat("%-12s %s\n", name, value).c_str(), stdout);
  };
  line("rows", absl::StrFormat("%d of %d x f32", options.rows, options.dim));
  line("first copy", absl::StrFormat("%.2f s, %.2f million rows a second", result.first_s,
                                     1e-6 * static_cast<double>(options.rows) / result.first_s));
  line("one row", absl::StrFormat(
                      "%.2f ms (median) from an acknowledged push to the subscriber, no pause between passes",
                      Quantile(result.scan_ms, 0.5)));
  line("under load", absl::StrFormat("%.1f ms (median), %.1f ms (99 %%); %.0f rows a second",
                                     Quantile(result.fresh_ms, 0.5), Quantile(result.fresh_ms, 0.99),
                                     static_cast<double>(result.given_rows) / result.subscribed_s));
  line("pushes",
       absl::StrFormat("%.3f of the rows a second without a subscriber (%.2f million); a push takes %.2f ms "
                       "instead of %.2f, "
                       "%.2f instead of %.2f (99 %%)",
                       Ratio(result), 1e-6 * Quantile(result.pushed_without, 0.5),
                       Quantile(result.push_ms_with, 0.5), Quantile(result.push_ms_without, 0.5),
                       Quantile(result.push_ms_with, 0.99), Quantile(result.push_ms_without, 0.99)));
}

void PrintSubscriptionJson(const SubscriptionBenchOptions& options, const SubscriptionBenchResult& result) {
  const Json json = {{"rows", options.rows},
                     {"dim", options.dim},
                     {"batch", options.batch},
                     {"rate", options.rate},
                     {"interval_ms", options.interval_ms},
                     {"first_s", result.first_s},
                     {"first_bytes", result.first_bytes},
                     {"one_row_ms", Quantile(result.scan_ms, 0.5)},
                     {"fresh_ms", Quantile(result.fresh_ms, 0.5)},
                     {"fresh_p99_ms", Quantile(result.fresh_ms, 0.99)},
                     {"given_rows_per_s", static_cast<double>(result.given_rows) / result.subscribed_s},
                     {"pushed_rows_per_s", Quantile(result.pushed_without, 0.5)},
                     {"ratio", Ratio(result)},
                     {"push_ms_without", Quantile(result.push_ms_without, 0.5)},
                     {"push_ms_with", Quantile(result.push_ms_with, 0.5)},
                     {"push_p99_ms_without", Quantile(result.push_ms_without, 0.99)},
                     {"push_p99_ms_with", Quantile(result.push_ms_with, 0.99)}};
  std::fputs((json.dump() + "\n").c_str(), stdout);
}

absl::Status MeasureAndPrint(const SubscriptionBenchOptions& options) {
  TANDEM_ASSIGN_OR_RETURN(const SubscriptionBenchResult result, Measure(options));
  (options.json ? PrintSubscriptionJson : PrintSubscriptionText)(options, result);
  return absl::OkStatus();
}

}  // namespace

void AddBenchSubscription(CLI::App* bench, CommandContext* context) {
  CLI::App* command = bench->add_subcommand(
      "subscription",
      "Follow a table while rows are pushed: how old changes are when they arrive, and what it costs, in "
      "this process");
  auto options = std::make_shared<SubscriptionBenchOptions>();
  const auto add = [command](const char* name, auto* value, const char* help) {
    return command->add_option(name, *value, help)->capture_default_str();
  };
  LimitTo(Between(1, 1e12), add("--rows", &options->rows, "Rows of the table"));
  LimitTo(Between(1, 4096), add("--dim", &options->dim, "Numbers of an embedding"));
  LimitTo(Between(1, 1e7), add("--batch", &options->batch, "Ids of a push"));
  LimitTo(Between(0, 1e6), add("--rate", &options->rate, "Pushes a second; 0: as many as there can be"));
  LimitTo(Between(0.1, 3600), add("--seconds", &options->seconds, "Duration of each phase"));
  LimitTo(Between(1, 1000),
          add("--rounds", &options->rounds, "Phases without a subscriber, each followed by one with it"));
  LimitTo(Between(0, 60000),
          add("--interval-ms", &options->interval_ms, "Least time between two passes over the table"));
  command->add_flag(
      "--json", options->json,
      "Print one JSON object: the flags, first_s, first_bytes, one_row_ms, fresh_ms, fresh_p99_ms, "
      "given_rows_per_s, pushed_rows_per_s, ratio, push_ms_without, push_ms_with and their p99");
  command->callback([options, context] {
    context->exit_code = ReportBench("bench subscription", MeasureAndPrint(*options));
  });
}

}  // namespace tandem::bench
