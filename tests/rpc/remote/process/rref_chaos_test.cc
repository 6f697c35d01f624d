// SPDX-License-Identifier: Apache-2.0
// References under random load and failures: four processes create, pass on, use and release references to
// each other's things, many at the same time, and two of them are killed. A thing must live while a living
// process has a reference to it, and must be released within a lease after the last one is gone.

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "rpc/remote/agent_functions.h"
#include "tests/rpc/remote/process/worker_process.h"
#include "tests/testing/status_matchers.h"

namespace tandem::rpc::remote::testing {
namespace {

constexpr int kWorkers = 4;
constexpr int kSequences = 10000;
constexpr size_t kAtATime = 48;
constexpr int kKillAt[] = {3500, 6500};
constexpr absl::Duration kTimeout = absl::Seconds(60);
// The delay that a busy machine adds to a lease: the owner checks four times per lease, and messages take
// time.
constexpr absl::Duration kSlack = absl::Seconds(10);

// A thing in the model: its owner, and how many references each worker has.
struct Model {
  int owner = 0;
  int held[kWorkers] = {};
  int steps_left = 0;  // of its sequence
  bool busy = false;
};

class Chaos {
 public:
  void Run();

 private:
  struct Step {
    int64_t thing;
    enum class Kind { kCreate, kPass, kUse, kDrop } kind;
    int at, to;
    Future<void> done;
    Future<int64_t> used;
  };

  bool Dead(int worker) const { return dead_.count(worker) > 0; }
  int AnyLiving() {
    int worker;
    do {
      worker = static_cast<int>(random_() % kWorkers);
    } while (Dead(worker));
    return worker;
  }
  void Begin(int64_t id);
  void Finish(const Step& step);
  void Kill();
  void ExpectThatAllGo(const std::set<int64_t>& but);
  int HeldBy(const Model& thing) const {
    int total = 0;
    for (int worker = 0; worker < kWorkers; ++worker) total += Dead(worker) ? 0 : thing.held[worker];
    return total;
  }
  // Things without references, or whose owner is dead, have had enough time to be released.
  void ForgetIfOver(int64_t id) {
    const Model& thing = things_.at(id);
    if (!thing.busy && (Dead(thing.owner) || HeldBy(thing) == 0)) things_.erase(id);
  }

  WorkerProcesses workers_{kWorkers};
  std::mt19937 random_{20261121};
  std::map<int64_t, Model> things_;
  std::set<int> dead_;
  // Things that a worker may have passed on before it died.
  std::set<int64_t> uncertain_;
  std::deque<Step> steps_;
  int64_t last_ = 0;
  int early_ = 0;
};

void Chaos::Begin(int64_t id) {
  Model& thing = things_.at(id);
  RpcAgent& agent = workers_.agent();
  Step step{.thing = id};
  if (HeldBy(thing) == 0) {
    thing.owner = AnyLiving();
    step.kind = Step::Kind::kCreate;
    step.at = AnyLiving();
    step.to = thing.owner;
  } else {
    do {
      step.at = static_cast<int>(random_() % kWorkers);
    } while (Dead(step.at) || thing.held[step.at] == 0);
    const uint32_t choice = random_() % 10;
    step.kind = thing.steps_left == 0 || choice < 3 ? Step::Kind::kDrop
                : choice < 7                        ? Step::Kind::kPass
                                                    : Step::Kind::kUse;
    step.to = AnyLiving();
  }
  const CallTarget at(WorkerProcesses::NameOf(step.at), {.timeout = kTimeout});
  switch (step.kind) {
    case Step::Kind::kCreate:
      step.done = agent.RpcAsync(at, kCreate, id, WorkerProcesses::NameOf(step.to));
      break;
    case Step::Kind::kPass:
      step.done = agent.RpcAsync(at, kPass, id, WorkerProcesses::NameOf(step.to));
      break;
    case Step::Kind::kDrop:
      step.done = agent.RpcAsync(at, kDrop, id);
      break;
    case Step::Kind::kUse:
      step.used = agent.RpcAsync(at, kUse, id);
      break;
  }
  thing.busy = true;
  if (thing.steps_left > 0) --thing.steps_left;
  steps_.push_back(std::move(step));
}

void Chaos::Finish(const Step& step) {
  Model& thing = things_.at(step.thing);
  thing.busy = false;
  absl::Status status;
  if (step.kind == Step::Kind::kUse) {
    const absl::StatusOr<int64_t> id = step.used.Wait(2 * kTimeout);
    status = id.status();
    if (id.ok()) {
      EXPECT_EQ(*id, step.thing);
    }
  } else {
    status = step.done.Wait(2 * kTimeout);
  }
  const bool somebody_died = Dead(step.at) || Dead(thing.owner) || Dead(step.to);
  if (!status.ok() && !somebody_died) {
    // A living worker has a reference to it, and the owner lives.
    ++early_;
    ADD_FAILURE() << "thing " << step.thing << " of worker/" << thing.owner << ", step "
                  << static_cast<int>(step.kind) << " at worker/" << step.at << " to worker/" << step.to
                  << ": " << status;
  }
  if (!status.ok() && step.kind == Step::Kind::kPass) uncertain_.insert(step.thing);
  if (status.ok() && step.kind == Step::Kind::kCreate) thing.held[step.at] = 1;
  if (status.ok() && step.kind == Step::Kind::kPass) ++thing.held[step.to];
  if (step.kind == Step::Kind::kDrop) --thing.held[step.at];
  ForgetIfOver(step.thing);
}

void Chaos::Kill() {
  const int victim = AnyLiving();
  dead_.insert(victim);
  workers_.Kill(victim);
  std::vector<int64_t> ids;
  for (const auto& [id, thing] : things_) ids.push_back(id);
  for (const int64_t id : ids) ForgetIfOver(id);
}

void Chaos::ExpectThatAllGo(const std::set<int64_t>& but) {
  const absl::Time give_up = absl::Now() + kTestLease + kSlack;
  for (int worker = 0; worker < kWorkers; ++worker) {
    if (Dead(worker)) continue;
    const double seconds = std::max(0.0, absl::ToDoubleSeconds(give_up - absl::Now()));
    TANDEM_ASSERT_OK_AND_ASSIGN(
        const std::vector<int64_t> left,
        workers_.agent().RpcSync(
            CallTarget(WorkerProcesses::NameOf(worker), {.timeout = absl::Seconds(seconds) + kTimeout}),
            kLiving, std::vector<int64_t>(but.begin(), but.end()), seconds));
    EXPECT_THAT(left, ::testing::IsEmpty()) << "things that nobody holds any more, at worker/" << worker;
  }
}

void Chaos::Run() {
  int begun = 0;
  size_t next_kill = 0;
  while (begun < kSequences || !things_.empty() || !steps_.empty()) {
    if (next_kill < std::size(kKillAt) && begun >= kKillAt[next_kill]) {
      Kill();
      ++next_kill;
    }
    while (steps_.size() < kAtATime) {
      // Starts a new sequence, or makes a step of one that has not ended.
      std::vector<int64_t> idle;
      for (const auto& [id, thing] : things_) {
        if (!thing.busy) idle.push_back(id);
        if (idle.size() == 64) break;
      }
      if (begun < kSequences && things_.size() < 200) {
        ++begun;
        things_[++last_].steps_left = static_cast<int>(random_() % 6);
        Begin(last_);
      } else if (!idle.empty()) {
        Begin(idle[random_() % idle.size()]);
      } else {
        break;
      }
    }
    if (steps_.empty()) continue;
    Finish(steps_.front());
    steps_.pop_front();
    if (early_ > 10) return;
  }

  // No worker has references, except those that a dead worker may have passed on. All other things are
  // released within the lease of the dead workers; then those things are released too.
  ExpectThatAllGo(uncertain_);
  for (int worker = 0; worker < kWorkers; ++worker) {
    if (!Dead(worker)) {
      TANDEM_ASSERT_OK(workers_.agent().RpcSync(WorkerProcesses::NameOf(worker), kDropAll));
    }
  }
  ExpectThatAllGo({});
  for (int worker = 0; worker < kWorkers; ++worker) {
    if (Dead(worker)) continue;
    const auto refs = workers_.agent().RpcSync(WorkerProcesses::NameOf(worker), kDebugRefs);
    TANDEM_ASSERT_OK(refs);
    EXPECT_EQ(refs->size(), 0) << WorkerProcesses::NameOf(worker);
  }
  EXPECT_EQ(dead_.size(), 2);
}

TEST(RRefChaosTest, EveryThingGoesWithinItsLeaseAndNoneEarly) { Chaos().Run(); }

}  // namespace
}  // namespace tandem::rpc::remote::testing
