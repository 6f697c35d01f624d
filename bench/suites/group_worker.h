// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BENCH_SUITES_GROUP_WORKER_H_
#define TANDEM_BENCH_SUITES_GROUP_WORKER_H_

// A worker process of a group: fills the table, then measures.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/harness/ps_case.h"
#include "bench/suites/bench_peers.h"
#include "bench/suites/call_loop.h"
#include "bench/suites/group_process.h"
#include "bench/suites/row_model.h"
#include "ps/client/client.h"

namespace tandem::bench {

// Measures the cases of a group together with the other workers. Used by one thread. All workers go through
// the same cases in the same order; the leader prints the combined results.
class GroupWorker {
 public:
  // `peers` must outlive the object.
  GroupWorker(const PsGroup& group, const GroupOptions& options, BenchPeers* peers);

  absl::Status Run();

 private:
  using Batches = std::vector<std::vector<uint64_t>>;

  absl::Status Fill();
  const Batches& BatchesOf(const PsCase& c);
  absl::Status Measure(const PsCase& c);
  absl::Status MeasureFairness(const PsCase& c);
  // A time window in which all workers make calls; a worker whose `loop` is nullptr makes none. Returns the
  // calls of all workers.
  struct Window {
    std::vector<CallTimes> workers;
    double server_cpu_seconds = 0;
  };
  absl::StatusOr<Window> RunTogether(CallLoop* loop, absl::Duration duration);
  // Adds the pushes of all workers to the model, then checks that the servers' rows equal the model's.
  absl::Status VerifyRows(const PsCase& c, CallLoop* loop);
  absl::StatusOr<double> ServerCpuSeconds() const;

  const PsGroup group_;
  const GroupOptions options_;
  BenchPeers* const peers_;
  const v1::TableConfig table_;
  RowModel model_;
  std::vector<BenchServer> servers_;
  std::unique_ptr<ps::Client> client_;
  std::map<std::pair<PsDistribution, size_t>, Batches> batches_;
};

}  // namespace tandem::bench

#endif  // TANDEM_BENCH_SUITES_GROUP_WORKER_H_
