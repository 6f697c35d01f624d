// SPDX-License-Identifier: Apache-2.0
// Random schedules of workers, on servers and on a reference model (model_table.h): the rows must have the
// same bits.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/ps/server/cluster.h"
#include "tests/ps/server/driver.h"
#include "tests/ps/server/model_table.h"
#include "tests/testing/status_matchers.h"

namespace tandem::ps::testing {
namespace {

constexpr uint32_t kModelWorkers = 3;
constexpr uint32_t kModelDim = 3;
constexpr uint64_t kSteps = 12;

struct Step {
  std::vector<uint64_t> pulled;
  PushOf push;
};

// The pull and push of worker `w` in step `t`: some ids are pulled; gradients are pushed for them and for
// some other ids, which perhaps have no row.
Step MakeStep(uint64_t seed, uint32_t w, uint64_t t) {
  CounterRandom random(seed, w * 1000 + t);
  Step step;
  for (uint64_t n = random.Below(12); n > 0; --n) step.pulled.push_back(random.Below(40) * 0x9e3779b9);
  step.push = {.table = "user", .dim = kModelDim, .ids = step.pulled};
  for (uint64_t n = random.Below(4); n > 0; --n) step.push.ids.push_back(random.Below(60) * 0x9e3779b9);
  for (size_t i = 0; i < step.push.ids.size() * kModelDim; ++i) {
    step.push.gradients.push_back(static_cast<float>(random.Normal()));
  }
  return step;
}

std::vector<float> ReadModel(ModelTable& model, const std::vector<uint64_t>& ids, bool create) {
  std::vector<float> rows;
  for (uint64_t id : ids) {
    const std::vector<float> row = model.Read(id, create);
    rows.insert(rows.end(), row.begin(), row.end());
  }
  return rows;
}

v1::OptimizerConfig OptimizerOf(uint64_t seed) {
  switch (seed % 4) {
    case 0:
      return Adagrad(0.1f, 0.1f);
    case 1:
      return Adam(0.01f);
    case 2:
      return Sgd(0.1f);
    default:
      return Ftrl(0.1f, 0.01f, 0.01f);
  }
}

// The workers take turns in random order: each one pulls (and waits if the mode requires it), then pushes.
// BOUNDED and ASYNC apply pushes on arrival, so the model applies them in that order. SYNC must not depend on
// the order of arrival, so the model applies pushes by step and rank.
class Schedule {
 public:
  Schedule(const v1::UpdateMode& mode, uint32_t servers, uint64_t seed)
      : mode_(mode),
        seed_(seed),
        config_(TestTable("user", kModelDim, kModelWorkers, mode, OptimizerOf(seed))),
        model_(config_),
        cluster_(servers) {}

  void Run() {
    TANDEM_ASSERT_OK(cluster_.CreateTable(config_));
    CounterRandom random(seed_, 99);
    while (MinClock() < kSteps && !::testing::Test::HasFatalFailure()) {
      Worker& worker = workers_[random.Below(kModelWorkers)];
      if (worker.clock == kSteps || worker.waiting) continue;
      if (worker.pulled) {
        Push(worker);
      } else {
        StartPull(worker);
      }
    }
    CheckEnd();
  }

 private:
  struct Worker {
    uint64_t clock = 0;
    bool pulled = false;
    bool waiting = false;
    Cluster::PendingPull pull;
  };
  uint32_t RankOf(const Worker& worker) const { return &worker - workers_; }
  uint64_t MinClock() const {
    uint64_t min = kSteps;
    for (const Worker& worker : workers_) min = std::min(min, worker.clock);
    return min;
  }
  bool MayPull(const Worker& worker) const {
    return mode_.kind() == v1::UpdateMode::ASYNC || MinClock() + mode_.staleness() >= worker.clock;
  }
  Step StepOf(const Worker& worker) const { return MakeStep(seed_, RankOf(worker), worker.clock); }

  void StartPull(Worker& worker) {
    worker.pull = cluster_.StartPull(RankOf(worker), worker.clock, "user", StepOf(worker).pulled);
    worker.waiting = true;
    ASSERT_EQ(worker.pull.answered(), MayPull(worker))
        << "worker " << RankOf(worker) << " step " << worker.clock;
    FinishPulls();
  }
  void FinishPulls() {
    for (Worker& worker : workers_) {
      if (!worker.waiting || !MayPull(worker)) continue;
      TANDEM_ASSERT_OK_AND_ASSIGN(const std::vector<float> rows, cluster_.Finish(worker.pull, kModelDim));
      ASSERT_EQ(rows, ReadModel(model_, StepOf(worker).pulled, /*create=*/true))
          << "worker " << RankOf(worker) << " step " << worker.clock;
      worker.waiting = false;
      worker.pulled = true;
    }
  }
  void Push(Worker& worker) {
    const uint64_t step = worker.clock;
    const PushOf push = StepOf(worker).push;
    TANDEM_ASSERT_OK(cluster_.Push({.worker = RankOf(worker), .step = step}, push));
    worker.pulled = false;
    ++worker.clock;
    if (mode_.kind() != v1::UpdateMode::SYNC) {
      missing_ += model_.Apply(push.ids, push.gradients);
    } else if (MinClock() == step + 1) {
      PushOf merged;
      for (uint32_t rank = 0; rank < kModelWorkers; ++rank) {
        const PushOf part = MakeStep(seed_, rank, step).push;
        merged.ids.insert(merged.ids.end(), part.ids.begin(), part.ids.end());
        merged.gradients.insert(merged.gradients.end(), part.gradients.begin(), part.gradients.end());
      }
      missing_ += model_.Apply(merged.ids, merged.gradients);
    }
    FinishPulls();
  }
  void CheckEnd() {
    TANDEM_ASSERT_OK_AND_ASSIGN(
        const std::vector<float> rows,
        cluster_.Pull(0, kSteps, "user", kModelDim, model_.ids(), /*read_only=*/true));
    EXPECT_EQ(rows, ReadModel(model_, model_.ids(), /*create=*/false));
    uint64_t row_count = 0;
    uint64_t missing = 0;
    for (size_t s = 0; s < cluster_.size(); ++s) {
      const v1::TableStatistics statistics = cluster_.server(s).Table("user").statistics();
      row_count += statistics.rows();
      missing += statistics.missing_rows();
      EXPECT_EQ(statistics.version(), mode_.kind() == v1::UpdateMode::SYNC ? kSteps : kSteps * kModelWorkers);
    }
    EXPECT_EQ(row_count, model_.rows());
    EXPECT_EQ(missing, missing_);
  }

  const v1::UpdateMode mode_;
  const uint64_t seed_;
  const v1::TableConfig config_;
  ModelTable model_;
  Cluster cluster_;
  Worker workers_[kModelWorkers];
  uint64_t missing_ = 0;
};

void RunSchedules(const v1::UpdateMode& mode) {
  for (uint64_t seed = 0; seed < 24; ++seed) {
    for (uint32_t servers : {1, 2, 4}) {
      SCOPED_TRACE(absl::StrCat("seed ", seed, ", ", servers, " servers"));
      Schedule(mode, servers, seed).Run();
      if (::testing::Test::HasFailure()) return;
    }
  }
}

TEST(AgainstAModel, SyncHasTheSameBitsOnAnyNumberOfServersInAnyOrderOfTurns) { RunSchedules(Sync()); }
TEST(AgainstAModel, BoundedAppliesOnArrivalAndWaitsForTheSlowest) { RunSchedules(Bounded(2)); }
TEST(AgainstAModel, AsyncAppliesOnArrival) { RunSchedules(Async()); }

}  // namespace
}  // namespace tandem::ps::testing
