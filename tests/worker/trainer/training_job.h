// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_WORKER_TRAINER_TRAINING_JOB_H_
#define TANDEM_TESTS_WORKER_TRAINER_TRAINING_JOB_H_

// A small job with workers and servers in the test's own process.

#include <atomic>
#include <cmath>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status.h"
#include "cluster/store/memory_store.h"
#include "gtest/gtest.h"
#include "tests/testing/ps_cluster.h"
#include "tests/testing/temp_dir.h"
#include "worker/job/job_parser.h"
#include "worker/trainer/training_run.h"

namespace tandem::worker {

// Clicks that depend on user and item separately: any model that learns reaches an AUC near .8.
inline void WriteClicks(const std::string& path, int rows) {
  std::ofstream out(path);
  out << "click,user,item,price\n";
  CounterRandom random(5, 5);
  for (int i = 0; i < rows; ++i) {
    const uint64_t user = random.Below(40), item = random.Below(40);
    const double logit = (user % 5) - 2.0 + ((item % 5) - 2.0);
    out << (random.UniformDouble() < 1 / (1 + std::exp(-logit)) ? 1 : 0) << ",u" << user << ",i" << item
        << "," << random.Below(100) << "\n";
  }
}

// Runs a small job in this process.
class TrainingJob : public ::testing::Test {
 protected:
  TrainingJob() { WriteClicks(dir_.File("clicks.csv"), 6000); }

  JobSpec Job(std::vector<std::string> overrides = {}) {
    const std::string text = absl::StrCat(
        "name: clicks\ndata: {format: csv, train: ", dir_.File("clicks.csv"),
        ", label: click, sparse: [user, item], dense: [{column: price, transform: standardize}]}\n",
        "model: {kind: wide_deep, dim: 4, hidden: [8]}\n",
        "train: {mode: sync, batch_size: 128, epochs: 3, timeout_seconds: 30}\n",
        "checkpoint: {dir: ", dir_.File("ckpt"), "}\n");
    absl::StatusOr<JobSpec> job = ParseJob(text, "test", overrides);
    TANDEM_CHECK_MSG(job.ok(), job.status().ToString());
    return *std::move(job);
  }

  // Runs the whole job in this process and returns rank 0's report.
  absl::StatusOr<RunReport> Run(const JobSpec& job, int servers, int workers, const RunOptions& options = {},
                                absl::Duration timeout = absl::Seconds(30),
                                rpc::FaultInjector injector = nullptr,
                                const std::atomic<bool>* stop = nullptr) {
    tandem::testing::PsCluster cluster(static_cast<uint32_t>(servers));
    cluster_ = &cluster;
    cluster::MemoryStore store;
    std::vector<absl::StatusOr<RunReport>> reports(workers, absl::UnknownError("did not run"));
    auto work = [&](int rank) -> absl::StatusOr<RunReport> {
      TANDEM_ASSIGN_OR_RETURN(
          auto client, ps::Client::Connect(
                           cluster.Channels(injector),
                           {.worker = static_cast<uint32_t>(rank), .epoch = ++epoch_, .timeout = timeout}));
      TANDEM_ASSIGN_OR_RETURN(
          auto group,
          collectives::InitProcessGroup(&store, {.rank = rank, .world_size = workers, .timeout = timeout}));
      return RunTraining(job, options, {.client = client.get(), .group = group.get(), .stop = stop});
    };
    std::vector<std::thread> threads;
    for (int rank = 0; rank < workers; ++rank) {
      threads.emplace_back([&, rank] { reports[rank] = work(rank); });
    }
    for (std::thread& thread : threads) thread.join();
    for (const auto& report : reports) TANDEM_RETURN_IF_ERROR(report);
    return reports[0];
  }

  tandem::testing::TempDir dir_;
  tandem::testing::PsCluster* cluster_ = nullptr;  // while Run runs: that of its servers, for the injector
  std::atomic<uint64_t> epoch_{0};
};

}  // namespace tandem::worker

#endif  // TANDEM_TESTS_WORKER_TRAINER_TRAINING_JOB_H_
