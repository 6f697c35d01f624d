// SPDX-License-Identifier: Apache-2.0
#include "bench/suites/group_worker.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "bench/harness/cpu_seconds.h"
#include "bench/harness/id_batches.h"
#include "bench/harness/ps_report.h"

namespace tandem::bench {
namespace {

// Number of ids that each worker verifies after each case, and the limits on its number of calls.
constexpr size_t kVerifiedIds = 8192, kFewestVerified = 2, kMostVerified = 64;

// Packs numbers as bytes for exchanges between workers. All processes run the same program.
template <typename T>
std::string Pack(absl::Span<const T> values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}
template <typename T>
std::vector<T> Unpack(const std::string& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

// Order: keys, seconds, cpu seconds, latencies.
std::string Pack(const CallTimes& times) {
  std::vector<double> numbers = {static_cast<double>(times.keys), times.seconds, times.cpu_seconds};
  numbers.insert(numbers.end(), times.latencies_us.begin(), times.latencies_us.end());
  return Pack<double>(numbers);
}
CallTimes UnpackTimes(const std::string& bytes) {
  const std::vector<double> numbers = Unpack<double>(bytes);
  CallTimes times;
  if (numbers.size() < 3) return times;
  times.keys = static_cast<uint64_t>(numbers[0]);
  times.seconds = numbers[1];
  times.cpu_seconds = numbers[2];
  times.latencies_us.assign(numbers.begin() + 3, numbers.end());
  return times;
}

}  // namespace

GroupWorker::GroupWorker(const PsGroup& group, const GroupOptions& options, BenchPeers* peers)
    : group_(group),
      options_(options),
      peers_(peers),
      table_(PsBenchTable(group.dim, group.workers)),
      model_(table_, options.rows) {}

absl::Status GroupWorker::Run() {
  TANDEM_ASSIGN_OR_RETURN(servers_, peers_->Servers());
  std::optional<PsTransport> connected;
  uint64_t life = 0;
  for (const PsCase& c : group_.cases) {
    if (connected != c.transport) {
      client_.reset();
      TANDEM_ASSIGN_OR_RETURN(
          client_, ConnectBenchClient(servers_, c.transport, peers_->rank(), life, options_.max_lag));
      TANDEM_RETURN_IF_ERROR(client_->CreateTable(table_));
      connected = c.transport;
      if (life++ == 0) TANDEM_RETURN_IF_ERROR(Fill());
    }
    const absl::Status status = c.op == PsOp::kFairness ? MeasureFairness(c) : Measure(c);
    TANDEM_RETURN_IF_ERROR(Annotate(
        status, absl::StrCat(Name(c.transport), ", ", Name(c.op), ", ", c.ids, " ids of dim ", c.dim)));
  }
  return absl::OkStatus();
}

absl::Status GroupWorker::Fill() {
  const uint64_t per_call = 4096;
  std::vector<float> rows(per_call * group_.dim);
  std::vector<uint64_t> ids;
  // Pulls create no rows on servers with followers.
  const bool push = options_.durability == "follower";
  if (push) rows.assign(rows.size(), RowModel::kGradient);
  uint64_t step = 0;
  for (uint64_t first = static_cast<uint64_t>(peers_->rank()) * per_call; first < options_.rows;
       first += per_call * static_cast<uint64_t>(peers_->workers())) {
    ids.resize(std::min(per_call, options_.rows - first));
    std::iota(ids.begin(), ids.end(), first);
    if (push) {
      TANDEM_RETURN_IF_ERROR(
          client_->Push(step++, {{.table = kPsTable, .ids = ids, .gradients = rows.data()}}));
      continue;
    }
    TANDEM_RETURN_IF_ERROR(
        client_->Pull(/*step=*/0, /*read_only=*/false, {{.table = kPsTable, .ids = ids, .rows = rows.data()}})
            .status());
  }
  TANDEM_RETURN_IF_ERROR(peers_->Barrier());
  if (push) {
    ids.resize(options_.rows);
    std::iota(ids.begin(), ids.end(), uint64_t{0});
    model_.Push(ids, 1);
    absl::SleepFor(options_.max_lag);  // from now on every read has these updates
  }
  return absl::OkStatus();
}

const GroupWorker::Batches& GroupWorker::BatchesOf(const PsCase& c) {
  Batches& batches = batches_[{c.distribution, c.ids}];
  if (batches.empty()) batches = MakeIdBatches(c.ids, options_.rows, c.distribution);
  return batches;
}

absl::StatusOr<double> GroupWorker::ServerCpuSeconds() const {
  double sum = 0;
  for (const BenchServer& server : servers_) {
    TANDEM_ASSIGN_OR_RETURN(const double seconds, CpuSecondsOf(server.pid));
    sum += seconds;
  }
  return sum;
}

absl::StatusOr<GroupWorker::Window> GroupWorker::RunTogether(CallLoop* loop, absl::Duration duration) {
  TANDEM_RETURN_IF_ERROR(peers_->Barrier());
  Window window;
  TANDEM_ASSIGN_OR_RETURN(const double before, ServerCpuSeconds());
  CallTimes mine;
  if (loop != nullptr) {
    TANDEM_ASSIGN_OR_RETURN(mine, loop->Run(duration));
  }
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> all, peers_->AllGather(Pack(mine)));
  TANDEM_ASSIGN_OR_RETURN(const double after, ServerCpuSeconds());
  for (const std::string& bytes : all) window.workers.push_back(UnpackTimes(bytes));
  window.server_cpu_seconds = after - before;
  return window;
}

absl::Status GroupWorker::VerifyRows(const PsCase& c, CallLoop* loop) {
  const Batches& batches = BatchesOf(c);
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                          peers_->AllGather(Pack<uint32_t>(loop->TakePushes())));
  for (const std::string& bytes : all) {
    const std::vector<uint32_t> times = Unpack<uint32_t>(bytes);
    if (times.size() != batches.size()) return absl::InternalError("workers disagree about the batches");
    for (size_t b = 0; b < batches.size(); ++b) {
      if (times[b] > 0) model_.Push(batches[b], times[b]);
    }
  }
  TANDEM_RETURN_IF_ERROR(loop->Verify(std::clamp(kVerifiedIds / c.ids, kFewestVerified, kMostVerified)));
  return peers_->Barrier();  // no worker pushes while another one still checks
}

absl::Status GroupWorker::Measure(const PsCase& c) {
  const Batches& batches = BatchesOf(c);
  const size_t first = batches.size() * static_cast<size_t>(peers_->rank()) / group_.workers;
  CallLoop loop(c, client_.get(), batches, first, &model_, /*check_responses=*/c.op == PsOp::kPull);
  TANDEM_RETURN_IF_ERROR(RunTogether(&loop, options_.time_per_case / 5).status());  // to warm up
  TANDEM_ASSIGN_OR_RETURN(const Window window, RunTogether(&loop, options_.time_per_case));
  TANDEM_RETURN_IF_ERROR(VerifyRows(c, &loop));
  if (!peers_->is_leader()) return absl::OkStatus();
  PsResult result;
  double mkeys = 0, client_cpu_seconds = 0;
  std::vector<double> latencies_us;
  for (const CallTimes& times : window.workers) {
    result.keys_per_s += static_cast<double>(times.keys) / times.seconds;
    mkeys += static_cast<double>(times.keys) / 1e6;
    client_cpu_seconds += times.cpu_seconds;
    latencies_us.insert(latencies_us.end(), times.latencies_us.begin(), times.latencies_us.end());
  }
  result.call = Summarize(std::move(latencies_us));
  result.client_cpu_s_per_mkeys = client_cpu_seconds / mkeys;
  result.server_cpu_s_per_mkeys = window.server_cpu_seconds / mkeys;
  Print(c, result, options_.json);
  return absl::OkStatus();
}

absl::Status GroupWorker::MeasureFairness(const PsCase& c) {
  PsCase mine = c;
  mine.op = peers_->is_leader() ? PsOp::kPull : PsOp::kPush;
  if (peers_->is_leader()) mine.in_flight = 1;
  const Batches& batches = BatchesOf(c);
  const size_t first = batches.size() * static_cast<size_t>(peers_->rank()) / group_.workers;
  // Rows that are pulled while the other pushes cannot be known; all are checked at the end.
  CallLoop loop(mine, client_.get(), batches, first, &model_, /*check_responses=*/false);
  CallLoop* const pulls = peers_->is_leader() ? &loop : nullptr;
  // Tails need many calls.
  const absl::Duration window_time = 5 * options_.time_per_case;
  TANDEM_RETURN_IF_ERROR(RunTogether(pulls, options_.time_per_case).status());  // to warm up
  TANDEM_ASSIGN_OR_RETURN(const Window idle, RunTogether(pulls, window_time));
  TANDEM_RETURN_IF_ERROR(RunTogether(&loop, options_.time_per_case).status());
  TANDEM_ASSIGN_OR_RETURN(const Window loaded, RunTogether(&loop, window_time));
  TANDEM_RETURN_IF_ERROR(VerifyRows(c, &loop));
  if (!peers_->is_leader()) return absl::OkStatus();
  FairnessResult result;
  result.idle = Summarize(idle.workers[0].latencies_us);
  result.loaded = Summarize(loaded.workers[0].latencies_us);
  result.pushed_keys_per_s = static_cast<double>(loaded.workers[1].keys) / loaded.workers[1].seconds;
  Print(c, result, options_.json);
  return absl::OkStatus();
}

}  // namespace tandem::bench
