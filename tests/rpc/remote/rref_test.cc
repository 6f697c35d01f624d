// SPDX-License-Identifier: Apache-2.0
#include "rpc/remote/rref.h"

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "rpc/remote/agent_functions.h"
#include "rpc/remote/reference_functions.h"
#include "rpc/remote/rpc_agent.h"
#include "tests/rpc/remote/cluster.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/watched.h"

namespace tandem::rpc::remote {
namespace {

using ::tandem::testing::StatusIs;
using ::tandem::testing::Watched;
using testing::Cluster;
using ::testing::HasSubstr;
using testing::kTestTimeout;

// Counts its instances.
class Counter {
 public:
  TANDEM_REMOTE_CLASS(Counter)
  Counter(Watched<int>* alive, int64_t start) : value(start), alive_(alive) { ++*alive_; }
  ~Counter() { --*alive_; }
  std::atomic<int64_t> value;

 private:
  Watched<int>* alive_;
};

constexpr Function<Counter(int64_t)> kMakeCounter{"make_counter"};
constexpr Function<int64_t(RRef<Counter>, int64_t)> kAddTo{"add_to"};
constexpr Function<RRef<Counter>(RRef<Counter>)> kGiveBack{"give_back"};
constexpr Function<void(RRef<Counter>)> kHold{"hold"};
constexpr Function<int64_t(RRef<Counter>, int64_t)> kAddFromThere{"add_from_there"};
constexpr Function<void()> kLetGo{"let_go"};
constexpr Function<std::string(std::string)> kText{"text"};
constexpr Function<std::string(std::string)> kFail{"fail"};

class RRefTest : public ::testing::Test {
 protected:
  struct Worker {
    absl::Mutex mutex;
    std::vector<RRef<Counter>> held ABSL_GUARDED_BY(mutex);
  };

  RpcAgent& Add(RpcAgentOptions options = {}) {
    workers.push_back(std::make_unique<Worker>());
    Worker* worker = workers.back().get();
    Functions functions;
    functions.Add(kMakeCounter, [this](int64_t start) { return std::make_unique<Counter>(&alive, start); });
    functions.Add(kAddTo, [](const RRef<Counter>& counter, int64_t value) -> absl::StatusOr<int64_t> {
      TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<Counter> local, counter.LocalValue());
      return local->value += value;
    });
    functions.Add(kGiveBack, [](RRef<Counter> counter) { return counter; });
    functions.Add(kHold, [worker](RRef<Counter> counter) {
      absl::MutexLock lock(&worker->mutex);
      worker->held.push_back(std::move(counter));
    });
    functions.Add(kLetGo, [worker] {
      std::vector<RRef<Counter>> held;
      absl::MutexLock lock(&worker->mutex);
      held.swap(worker->held);
    });
    functions.Add(kAddFromThere,
                  [](const RRef<Counter>& counter, int64_t value) { return counter.RpcSync(kAddTo, value); });
    functions.Add(kText, [](const std::string& text) { return text; });
    functions.Add(kFail, [](const std::string& text) -> absl::StatusOr<std::string> {
      return absl::AbortedError(text);
    });
    options.reference_lease = lease;
    return cluster.Add(std::move(functions), std::move(options));
  }

  absl::Duration lease = absl::Seconds(30);
  Watched<int> alive;
  std::vector<std::unique_ptr<Worker>> workers;
  Cluster cluster;
};

TEST_F(RRefTest, TheValueLivesAtItsOwnerAndGoesWithTheLastReference) {
  RpcAgent& a = Add();
  Add();
  for (const char* owner : {"worker/0", "worker/1"}) {
    RRef<Counter> counter = a.Remote(owner, kMakeCounter, 10);
    EXPECT_EQ(counter.owner(), owner);
    TANDEM_ASSERT_OK(counter.WaitUntilCreated());
    EXPECT_EQ(alive, 1);
    TANDEM_ASSERT_OK_AND_ASSIGN(const int64_t sum, counter.RpcSync(kAddTo, 5));
    EXPECT_EQ(sum, 15);
    RRef<Counter> copy = counter;
    counter = {};
    TANDEM_EXPECT_OK(copy.RpcSync(kAddTo, 1));
    copy = {};
    EXPECT_TRUE(alive.AwaitValue(0)) << owner;
    EXPECT_TRUE(a.references().AwaitConfirmed(absl::Now() + kTestTimeout));
  }
  EXPECT_TRUE(cluster[1].references().DebugRefs().empty());
}

TEST_F(RRefTest, ToHereBringsACopy) {
  RpcAgent& a = Add();
  Add();
  for (const char* owner : {"worker/0", "worker/1"}) {
    const RRef<std::string> text = a.Remote(owner, kText, std::string(5000, 't'));
    TANDEM_ASSERT_OK_AND_ASSIGN(const std::string here, text.ToHere());
    EXPECT_EQ(here, std::string(5000, 't'));
    EXPECT_EQ(text.is_owner(), std::string("worker/0") == owner);
  }
}

TEST_F(RRefTest, AFunctionMayBeCalledBeforeItsReferenceIsMade) {
  RpcAgent& a = Add();
  Add();
  const RRef<Counter> counter = a.Remote("worker/1", kMakeCounter, 1);
  std::vector<Future<int64_t>> sums;
  for (int i = 0; i < 20; ++i) sums.push_back(counter.RpcAsync({}, kAddTo, 1));
  TANDEM_EXPECT_OK(WaitAll(sums, kTestTimeout));
  TANDEM_ASSERT_OK_AND_ASSIGN(const int64_t sum, counter.RpcSync(kAddTo, 0));
  EXPECT_EQ(sum, 21);
}

TEST_F(RRefTest, WhatWentWrongInTheMakingIsTold) {
  RpcAgent& a = Add();
  Add();
  for (const char* owner : {"worker/0", "worker/1"}) {
    const RRef<std::string> text = a.Remote(owner, kFail, "no way");
    EXPECT_THAT(text.ToHere(), StatusIs(absl::StatusCode::kAborted, HasSubstr("no way")));
    EXPECT_THAT(text.WaitUntilCreated(),
                StatusIs(absl::StatusCode::kAborted, HasSubstr(absl::StrCat(owner, ": fail: no way"))));
  }
}

TEST_F(RRefTest, AReferenceIsPassedOnAndOutlivesItsSender) {
  RpcAgent& a = Add();
  Add();
  Add();
  RRef<Counter> counter = a.Remote("worker/1", kMakeCounter, 0);
  TANDEM_ASSERT_OK_AND_ASSIGN(const int64_t sum, a.RpcSync("worker/2", kAddFromThere, counter, 7));
  EXPECT_EQ(sum, 7);
  TANDEM_ASSERT_OK(a.RpcSync("worker/2", kHold, counter));
  counter = {};
  EXPECT_TRUE(cluster[1].references().AwaitRefs(
      [](const std::vector<DebugRef>& refs) {
        return refs.size() == 1 && refs[0].holders.size() == 1 && refs[0].holders[0].worker == "worker/2";
      },
      absl::Now() + kTestTimeout));
  EXPECT_EQ(alive, 1);
  RRef<Counter> held;
  {
    absl::MutexLock lock(&workers[2]->mutex);
    held = workers[2]->held[0];
  }
  TANDEM_ASSERT_OK_AND_ASSIGN(const int64_t more, held.RpcSync(kAddTo, 1));
  EXPECT_EQ(more, 8);
  held = {};
  TANDEM_ASSERT_OK(a.RpcSync("worker/2", kLetGo));
  EXPECT_TRUE(alive.AwaitValue(0));
}

TEST_F(RRefTest, AReferenceComesBackToItsOwnerAndAsAResult) {
  RpcAgent& a = Add();
  RpcAgent& b = Add();
  const RRef<Counter> mine = a.Own(std::make_shared<Counter>(&alive, 3));
  TANDEM_ASSERT_OK_AND_ASSIGN(const RRef<Counter> back, a.RpcSync("worker/1", kGiveBack, mine));
  EXPECT_TRUE(back.is_owner());
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<Counter> value, back.LocalValue());
  EXPECT_EQ(value->value, 3);
  const RRef<Counter> theirs = a.Remote("worker/1", kMakeCounter, 4);
  TANDEM_ASSERT_OK_AND_ASSIGN(const RRef<Counter> again, a.RpcSync("worker/1", kGiveBack, theirs));
  EXPECT_FALSE(again.is_owner());
  TANDEM_ASSERT_OK_AND_ASSIGN(const int64_t sum, again.RpcSync(kAddTo, 1));
  EXPECT_EQ(sum, 5);
  EXPECT_THAT(again.LocalValue(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("lives at worker/1")));
  EXPECT_GE(b.references().DebugRefs().size(), 1);
}

TEST_F(RRefTest, ADeadHoldersReferencesGoWithinTheLease) {
  lease = absl::Seconds(3);
  RpcAgent& a = Add();
  Add();
  Add();
  RRef<Counter> counter = a.Remote("worker/1", kMakeCounter, 0);
  TANDEM_ASSERT_OK(a.RpcSync("worker/2", kHold, counter));
  counter = {};
  ASSERT_TRUE(a.references().AwaitConfirmed(absl::Now() + kTestTimeout));
  ASSERT_TRUE(alive.AwaitValue(1));  // its creation may not have ended yet
  // The reference is renewed while its holder lives ...
  EXPECT_FALSE(alive.AwaitValue(0, 1.5 * lease));
  // ... and not after its death: the agent ends without a message.
  std::vector<RRef<Counter>> of_the_dead;
  {
    absl::MutexLock lock(&workers[2]->mutex);
    of_the_dead.swap(workers[2]->held);
  }
  cluster.Kill(2);
  const absl::Time death = absl::Now();
  EXPECT_TRUE(alive.AwaitValue(0));
  EXPECT_LT(absl::Now() - death, 3 * lease) << "a lease, and what a busy machine adds";
  EXPECT_THAT(of_the_dead[0].RpcSync(kAddTo, 1), StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST_F(RRefTest, AValueThatIsLongInTheMakingIsNotReleasedBefore) {
  lease = absl::Seconds(2);
  constexpr Function<Counter()> kSlow{"slow"};
  absl::Notification go;
  Functions functions;
  functions.Add(kSlow, [&] {
    go.WaitForNotification();
    return std::make_unique<Counter>(&alive, 1);
  });
  RpcAgent& a = Add();
  cluster.Add(std::move(functions), {.reference_lease = lease});
  const RRef<Counter> counter = a.Remote("worker/1", kSlow);
  absl::SleepFor(1.25 * lease);  // the creation takes this long
  go.Notify();
  TANDEM_ASSERT_OK(counter.WaitUntilCreated());
  EXPECT_FALSE(alive.AwaitValue(0, lease / 2));
}

TEST_F(RRefTest, RepeatedAndLateMessagesAboutForksDoNoHarm) {
  RpcAgent& a = Add();
  RpcAgent& b = Add();
  RRef<Counter> counter = a.Remote("worker/1", kMakeCounter, 0);
  TANDEM_ASSERT_OK(counter.WaitUntilCreated());
  const auto handle = counter.handle();
  const ForkMessage mine = a.references().MessageOf(*handle, a.references().ForkOf(*handle), "worker/0");
  ForkMessage other = mine;
  other.fork_number += 1000;
  // A fork that is added twice and deleted twice.
  for (int i = 0; i < 2; ++i) TANDEM_EXPECT_OK(a.RpcSync("worker/1", kAddFork, other));
  EXPECT_EQ(b.references().DebugRefs().at(0).holders.size(), 2);
  TANDEM_ASSERT_OK_AND_ASSIGN(bool was_there, a.RpcSync("worker/1", kDeleteFork, other));
  EXPECT_TRUE(was_there);
  TANDEM_ASSERT_OK_AND_ASSIGN(was_there, a.RpcSync("worker/1", kDeleteFork, other));
  EXPECT_FALSE(was_there);
  // A deletion that arrives before the addition.
  TANDEM_EXPECT_OK(a.RpcSync("worker/1", kAddFork, other));
  EXPECT_EQ(b.references().DebugRefs().at(0).holders.size(), 1);
  // A released value does not come back.
  counter = {};
  EXPECT_EQ(alive, 1) << "the handle still holds it";
  const auto weak = std::weak_ptr(handle);
  const_cast<std::shared_ptr<ReferenceHandle>&>(handle).reset();
  ASSERT_TRUE(alive.AwaitValue(0));
  ForkMessage late = other;
  late.fork_number += 1;
  EXPECT_THAT(a.RpcSync("worker/1", kAddFork, late),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("released by its owner worker/1")));
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::vector<int64_t> lost,
                              a.RpcSync("worker/1", kRenewForks, std::vector<ForkMessage>{late, mine}));
  EXPECT_THAT(lost, ::testing::Contains(0));
  EXPECT_TRUE(b.references().DebugRefs().empty());
}

TEST_F(RRefTest, ValuesOfAnEarlierLifeAreNamedAsLost) {
  lease = absl::Milliseconds(400);
  RpcAgent& a = Add();
  Add();
  const RRef<Counter> counter = a.Remote("worker/1", kMakeCounter, 0);
  TANDEM_ASSERT_OK(counter.WaitUntilCreated());
  cluster.Kill(1);
  Add({.name = "worker/1"});
  EXPECT_THAT(counter.RpcSync(kAddTo, 1),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("lost with an earlier life of worker/1")));
}

TEST_F(RRefTest, TheStateOfAWorkerCanBeAskedFor) {
  RpcAgent& a = Add();
  Add();
  const RRef<Counter> counter = a.Remote("worker/1", kMakeCounter, 0);
  TANDEM_ASSERT_OK(counter.WaitUntilCreated());
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::vector<DebugRef> refs, a.RpcSync("worker/1", kDebugRefs));
  ASSERT_EQ(refs.size(), 1);
  EXPECT_EQ(refs[0].type, "Counter");
  ASSERT_EQ(refs[0].holders.size(), 1);
  EXPECT_EQ(refs[0].holders[0].worker, "worker/0");
  EXPECT_GT(refs[0].holders[0].lease_left_seconds, 0);
}

}  // namespace
}  // namespace tandem::rpc::remote
