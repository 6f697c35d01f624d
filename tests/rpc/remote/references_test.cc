// SPDX-License-Identifier: Apache-2.0
// Tests the forks of references, message by message, and what happens to them when the calls that carry them
// are repeated.

#include "rpc/remote/references.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "rpc/connect.h"
#include "rpc/server.h"
#include "tests/rpc/remote/cluster.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_key.h"
#include "tests/testing/watched.h"

namespace tandem::rpc::remote {
namespace {

using ::tandem::testing::StatusIs;
using ::tandem::testing::Watched;
using testing::Cluster;
using testing::kTestTimeout;

// Sorts by name: the order of forks is random, like the incarnations of the workers that created them.
std::vector<std::string> HoldersOf(const std::vector<DebugRef>& refs) {
  std::vector<std::string> holders;
  for (const DebugRef& ref : refs) {
    for (const DebugRef::Holder& holder : ref.holders) holders.push_back(holder.worker);
  }
  std::sort(holders.begin(), holders.end());
  return holders;
}
bool AwaitHolders(RpcAgent& owner, const std::vector<std::string>& expected) {
  return owner.references().AwaitRefs(
      [&](const std::vector<DebugRef>& refs) { return HoldersOf(refs) == expected; },
      absl::Now() + kTestTimeout);
}

class ReferencesTest : public ::testing::Test {
 protected:
  ReferencesTest() {
    cluster.Add({});
    cluster.Add({});
    value = cluster[0].Own(std::make_shared<std::string>("value"));
  }
  // Returns a reference as it is sent to worker/1. The sender's part ends at once.
  std::string Sent() {
    MessageReferences message(cluster[0].shared_references(), "worker/1");
    absl::StatusOr<std::string> wire = message.Send(value.handle());
    TANDEM_EXPECT_OK(wire);
    return wire.value_or("");
  }
  std::shared_ptr<ReferenceHandle> Receive(const std::string& wire) {
    MessageReferences message(cluster[1].shared_references(), "worker/0");
    absl::StatusOr<std::shared_ptr<ReferenceHandle>> handle = message.Receive(wire);
    TANDEM_EXPECT_OK(handle);
    return handle.value_or(nullptr);
  }
  bool Settled() { return cluster[1].references().AwaitConfirmed(absl::Now() + kTestTimeout); }

  Cluster cluster;
  RRef<std::string> value;
};

TEST_F(ReferencesTest, AMessageThatComesTwiceIsOneReference) {
  const std::string wire = Sent();
  std::shared_ptr<ReferenceHandle> first = Receive(wire), again = Receive(wire);
  EXPECT_EQ(cluster[1].references().held(), 1);
  first.reset();
  ASSERT_TRUE(Settled());
  EXPECT_TRUE(AwaitHolders(cluster[0], {"worker/1"}));
  again.reset();
  EXPECT_TRUE(AwaitHolders(cluster[0], {}));
}

TEST_F(ReferencesTest, AMessageThatComesAgainWhenItsReferenceWasGivenUpIsAnother) {
  const std::string wire = Sent();
  Receive(wire).reset();
  ASSERT_TRUE(AwaitHolders(cluster[0], {}));
  std::shared_ptr<ReferenceHandle> again = Receive(wire);
  EXPECT_TRUE(AwaitHolders(cluster[0], {"worker/1"}));
  EXPECT_EQ(Receive(wire), again) << "a third time it is the one that is held";
  again.reset();
  EXPECT_TRUE(AwaitHolders(cluster[0], {}));
}

// Counts its instances.
class InstanceCounter {
 public:
  TANDEM_REMOTE_CLASS(InstanceCounter)
  explicit InstanceCounter(Watched<int>* alive) : alive_(alive) { ++*alive_; }
  ~InstanceCounter() { --*alive_; }

 private:
  Watched<int>* alive_;
};

constexpr Function<InstanceCounter()> kMakeWitness{"make_witness"};
constexpr Function<bool(RRef<InstanceCounter>)> kIsAlive{"is_alive"};
constexpr Function<void(RRef<InstanceCounter>)> kTake{"take", {.idempotent = true}};
constexpr Function<RRef<InstanceCounter>()> kGive{"give"};

// A proxy in front of a worker: it receives calls and passes them on when, and as often as, the test says.
class CallProxy {
 public:
  explicit CallProxy(const std::string& address) {
    ConnectOptions options;
    options.transport = "grpc";
    options.channel.caller = ::tandem::testing::WithTestKey();
    absl::StatusOr<std::unique_ptr<Channel>> channel = Connect(address, options);
    TANDEM_CHECK_MSG(channel.ok(), channel.status().ToString());
    channel_ = *std::move(channel);
    const auto keep = [this](std::shared_ptr<ServerCall> call) {
      absl::MutexLock lock(&mutex_);
      calls_.push_back(std::move(call));
    };
    absl::StatusOr<std::unique_ptr<Server>> server =
        Server::Start({.transport = "grpc"}, {{"tandem.v1.RemoteFunctions", {{"Call", Right::kAct, keep}}}});
    TANDEM_CHECK_MSG(server.ok(), server.status().ToString());
    server_ = *std::move(server);
  }
  std::string address() const { return absl::StrCat("127.0.0.1:", server_->port()); }
  std::shared_ptr<ServerCall> Next() {
    absl::MutexLock lock(&mutex_);
    const auto there = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return !calls_.empty(); };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&there), kTestTimeout)) return nullptr;
    std::shared_ptr<ServerCall> call = std::move(calls_.back());
    calls_.pop_back();
    return call;
  }
  // Each call is one attempt.
  absl::StatusOr<Bytes> PassOn(const ServerCall& call) {
    return channel_->Call("/tandem.v1.RemoteFunctions/Call", call.request(), {.timeout = kTestTimeout});
  }

 private:
  absl::Mutex mutex_;
  std::vector<std::shared_ptr<ServerCall>> calls_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Channel> channel_;
  std::unique_ptr<Server> server_;
};

// worker/0 passes a reference to a value of ps/0 to worker/1. Each worker has its own directory and can reach
// only the workers in it.
class RetriedReferenceTest : public ::testing::Test {
 protected:
  RetriedReferenceTest() {
    owner = Start("ps/0", &owners_directory);
    sender = Start("worker/0", &senders_directory);
    callee = Start("worker/1", &callees_directory);
    proxy = std::make_unique<CallProxy>(callee->address());
    Member shown = callee->member();
    shown.address = proxy->address();
    TANDEM_EXPECT_OK(senders_directory.Register(shown));
    TANDEM_EXPECT_OK(senders_directory.Register(owner->member()));
    TANDEM_EXPECT_OK(callees_directory.Register(owner->member()));
    mine = sender->Remote("ps/0", kMakeWitness);
    TANDEM_EXPECT_OK(mine.WaitUntilCreated());
  }
  ~RetriedReferenceTest() override { (void)Held(); }

  std::unique_ptr<RpcAgent> Start(const std::string& name, Directory* directory) {
    Functions functions;
    functions.Add(kMakeWitness, [this] { return std::make_unique<InstanceCounter>(&alive); });
    functions.Add(kIsAlive, [](const RRef<InstanceCounter>& witness) { return witness.LocalValue().ok(); });
    functions.Add(kTake, [this](RRef<InstanceCounter> witness) -> absl::Status {
      absl::MutexLock lock(&mutex);
      if (hold) held = std::move(witness);
      witness = {};
      return response;
    });
    RpcAgentOptions options{.name = name, .transport = "grpc"};
    options.reference_lease = absl::Seconds(60);
    absl::StatusOr<std::unique_ptr<RpcAgent>> agent =
        RpcAgent::Start(options, directory, std::move(functions));
    TANDEM_CHECK_MSG(agent.ok(), agent.status().ToString());
    return *std::move(agent);
  }
  // Calls kTake, whose first attempt releases the reference and sends no response.
  void TakeOnce() {
    call = sender->RpcAsync("worker/1", kTake, mine);
    under_way = proxy->Next();
    ASSERT_NE(under_way, nullptr);
    TANDEM_ASSERT_OK(proxy->PassOn(*under_way));
    ASSERT_TRUE(callee->references().AwaitConfirmed(absl::Now() + kTestTimeout));
    ASSERT_TRUE(AwaitHolders(*owner, {"worker/0"}));
  }
  void Hold() {
    absl::MutexLock lock(&mutex);
    hold = true;
  }
  RRef<InstanceCounter> Held() {
    absl::MutexLock lock(&mutex);
    return std::exchange(held, {});
  }
  // The callee has a reference to an existing value, and it is the last one.
  void ExpectHeldByTheCallee() {
    ASSERT_TRUE(AwaitHolders(*owner, {"worker/1"}));
    EXPECT_EQ(alive, 1);
    RRef<InstanceCounter> theirs = Held();
    ASSERT_TRUE(theirs.valid());
    TANDEM_ASSERT_OK_AND_ASSIGN(const bool there, theirs.RpcSync(kIsAlive));
    EXPECT_TRUE(there);
    theirs = {};
    EXPECT_TRUE(alive.AwaitValue(0));
  }

  Watched<int> alive;
  MemoryDirectory owners_directory, senders_directory, callees_directory;
  absl::Mutex mutex;
  bool hold ABSL_GUARDED_BY(mutex) = false;
  absl::Status response ABSL_GUARDED_BY(mutex);
  RRef<InstanceCounter> held ABSL_GUARDED_BY(mutex);
  std::unique_ptr<RpcAgent> owner, sender, callee;
  std::unique_ptr<CallProxy> proxy;
  RRef<InstanceCounter> mine;
  Future<void> call;
  std::shared_ptr<ServerCall> under_way;
};

TEST_F(RetriedReferenceTest, IsKeptByItsSenderUntilTheOwnerKnowsWhatTheCalleeHolds) {
  for (const absl::Status& says : {absl::OkStatus(), absl::AbortedError("no")}) {
    {
      absl::MutexLock lock(&mutex);
      hold = false;
      response = says;
    }
    mine = sender->Remote("ps/0", kMakeWitness);
    TANDEM_ASSERT_OK(mine.WaitUntilCreated());
    ASSERT_TRUE(alive.AwaitValue(1));
    TakeOnce();
    // The callee's messages to the owner are delayed from here on.
    TANDEM_ASSERT_OK(callees_directory.Unregister(owner->member()));
    Hold();
    TANDEM_ASSERT_OK_AND_ASSIGN(Bytes second, proxy->PassOn(*under_way));
    under_way->Finish(std::move(second));
    EXPECT_EQ(call.Wait(kTestTimeout).code(), says.code());
    mine = {};
    ASSERT_TRUE(AwaitHolders(*owner, {"worker/1"})) << "what the sender has given up is gone";
    TANDEM_ASSERT_OK(callees_directory.Register(owner->member()));
    ExpectHeldByTheCallee();
  }
}

TEST_F(RetriedReferenceTest, IsKeptForALeaseByTheSenderOfACallThatGotNoAnswer) {
  TakeOnce();
  TANDEM_ASSERT_OK(callees_directory.Unregister(owner->member()));
  call.Cancel();
  EXPECT_THAT(call.Wait(kTestTimeout), StatusIs(absl::StatusCode::kCancelled));
  mine = {};
  Hold();
  TANDEM_EXPECT_OK(proxy->PassOn(*under_way));  // it was on its way
  EXPECT_EQ(sender->references().held(), 1);
  TANDEM_ASSERT_OK(callees_directory.Register(owner->member()));
  ASSERT_TRUE(AwaitHolders(*owner, {"worker/0", "worker/1"}));
  sender->references().ReleaseAll();
  ExpectHeldByTheCallee();
}

TEST_F(RetriedReferenceTest, IsKeptByItsSenderThoughTheOwnerCouldNotBeTold) {
  TANDEM_ASSERT_OK(callees_directory.Unregister(owner->member()));
  // The process at the owner's address refuses all messages.
  TANDEM_ASSERT_OK(senders_directory.Unregister(owner->member()));
  Member other = owner->member();
  ++other.incarnation;
  TANDEM_ASSERT_OK(senders_directory.Register(other));
  Hold();
  call = sender->RpcAsync("worker/1", kTake, mine);
  under_way = proxy->Next();
  ASSERT_NE(under_way, nullptr);
  TANDEM_ASSERT_OK_AND_ASSIGN(Bytes taken, proxy->PassOn(*under_way));
  under_way->Finish(std::move(taken));
  TANDEM_ASSERT_OK(call.Wait(kTestTimeout));
  TANDEM_ASSERT_OK(senders_directory.Unregister(other));
  TANDEM_ASSERT_OK(senders_directory.Register(owner->member()));
  mine = {};
  sender->references().RunMaintenance();
  ASSERT_TRUE(AwaitHolders(*owner, {"worker/0", "worker/1"}));
  sender->references().ReleaseAll();
  ASSERT_TRUE(AwaitHolders(*owner, {"worker/1"}));
  TANDEM_ASSERT_OK(callees_directory.Register(owner->member()));
  ExpectHeldByTheCallee();
}

TEST(AnswerReferencesTest, GoWithTheWorkerThatGaveThem) {
  Watched<int> alive;
  Cluster cluster;
  Functions functions;
  functions.Add(kGive, [&alive](const Context& context) {
    return context.agent().Own(std::make_shared<InstanceCounter>(&alive));
  });
  RpcAgent& a = cluster.Add({});
  cluster.Add(std::move(functions));
  TANDEM_ASSERT_OK_AND_ASSIGN(const RRef<InstanceCounter> given, a.RpcSync("worker/1", kGive));
  EXPECT_EQ(alive, 1);
  cluster.Kill(1);
  EXPECT_EQ(alive, 0);
}

}  // namespace
}  // namespace tandem::rpc::remote
