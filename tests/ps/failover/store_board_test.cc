// SPDX-License-Identifier: Apache-2.0
#include "ps/failover/store_board.h"
#include "cluster/join.h"

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "cluster/store/forwarding_store.h"
#include "cluster/store/memory_store.h"
#include "cluster/store/store_server.h"
#include "rpc/connect.h"
#include "tests/testing/memory_board.h"
#include "tests/testing/status_matchers.h"

namespace tandem::ps {
namespace {

using ::tandem::testing::MemoryBoard;
using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Outcome = ps::CompareAndSetResult::Outcome;
using v1::ShardPlacement;

// No wait of these tests lasts so long unless something is wrong.
constexpr absl::Duration kLimit = absl::Seconds(60);

ShardPlacement Document(uint64_t version, const std::string& primary) {
  ShardPlacement placement;
  placement.set_version(version);
  placement.set_term(1);
  placement.mutable_primary()->set_id(primary);
  placement.mutable_primary()->set_address("10.0.0.1:7000");
  return placement;
}

// Each test runs against all boards.
enum class Kind { kMemory, kStore, kRemoteStore };

class BoardTest : public ::testing::TestWithParam<Kind> {
 protected:
  BoardTest() {
    switch (GetParam()) {
      case Kind::kMemory:
        board_ = std::make_unique<MemoryBoard>();
        return;
      case Kind::kStore:
        board_ = std::make_unique<StoreBoard>(&store_);
        return;
      case Kind::kRemoteStore: {
        server_ = cluster::StoreServer::Start("127.0.0.1:0").value();
        const std::string address = absl::StrCat("127.0.0.1:", server_->port());
        rpc::Caller server{.member = "ps/3"};  // the placement of shard 3 belongs to it
        server.life =
            cluster::JoinStore(*cluster::ConnectStore(address, server).value(), {.member = server.member})
                .value();
        board_ = std::make_unique<StoreBoard>(cluster::ConnectStore(address, server).value());
        return;
      }
    }
  }
  Outcome Set(uint64_t expected, const ShardPlacement& desired) {
    return board_->CompareAndSet(3, expected, desired, kLimit).value().outcome;
  }

  cluster::MemoryStore store_;
  std::unique_ptr<cluster::StoreServer> server_;
  std::unique_ptr<ps::Board> board_;
};

TEST_P(BoardTest, AnAbsentDocumentHasVersionZero) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const ShardPlacement placement, board_->Read(3, kLimit));
  EXPECT_EQ(placement.version(), 0u);
}

TEST_P(BoardTest, TheFirstOfTwoThatExpectTheSameVersionWins) {
  EXPECT_EQ(Set(0, Document(1, "a")), Outcome::kDone);
  TANDEM_ASSERT_OK_AND_ASSIGN(const ps::CompareAndSetResult second,
                              board_->CompareAndSet(3, 0, Document(1, "b"), kLimit));
  EXPECT_EQ(second.outcome, Outcome::kChanged);
  EXPECT_EQ(second.current.primary().id(), "a");
  EXPECT_EQ(Set(1, Document(2, "b")), Outcome::kDone);
  TANDEM_ASSERT_OK_AND_ASSIGN(const ShardPlacement placement, board_->Read(3, kLimit));
  EXPECT_EQ(placement.version(), 2u);
  EXPECT_EQ(placement.primary().id(), "b");
  // Each shard has a document of its own.
  TANDEM_ASSERT_OK_AND_ASSIGN(const ShardPlacement other, board_->Read(4, kLimit));
  EXPECT_EQ(other.version(), 0u);
}

TEST_P(BoardTest, OfManyThatCompeteForAVersionOneWins) {
  std::vector<std::thread> threads;
  std::atomic<int> won{0};
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      if (Set(0, Document(1, absl::StrCat("p", i))) == Outcome::kDone) won.fetch_add(1);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(won.load(), 1);
}

TEST_P(BoardTest, AVersionMustGrow) {
  EXPECT_THAT(board_->CompareAndSet(3, 1, Document(1, "a"), kLimit),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_P(BoardTest, AwaitChangeReturnsTheNextVersionAndEndsWithItsTime) {
  ASSERT_EQ(Set(0, Document(1, "a")), Outcome::kDone);
  EXPECT_THAT(board_->AwaitChange(3, 1, absl::Milliseconds(1)),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  absl::StatusOr<ShardPlacement> seen;
  std::thread waiter([&] { seen = board_->AwaitChange(3, 1, kLimit); });
  EXPECT_EQ(Set(1, Document(2, "b")), Outcome::kDone);
  waiter.join();
  TANDEM_ASSERT_OK(seen.status());
  EXPECT_EQ(seen->primary().id(), "b");
}

TEST_P(BoardTest, CancelEndsWaitsAndAllLaterCalls) {
  absl::StatusOr<ShardPlacement> seen;
  std::thread waiter([&] { seen = board_->AwaitChange(3, 0, kLimit); });
  board_->Cancel();
  waiter.join();
  EXPECT_THAT(seen, StatusIs(absl::StatusCode::kCancelled));
  EXPECT_THAT(board_->Read(3, kLimit), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_THAT(board_->CompareAndSet(3, 0, Document(1, "a"), kLimit), StatusIs(absl::StatusCode::kCancelled));
}

INSTANTIATE_TEST_SUITE_P(Boards, BoardTest,
                         ::testing::Values(Kind::kMemory, Kind::kStore, Kind::kRemoteStore));

// A store whose CompareSet fails with `error`, before or after the change.
class FailingStore : public cluster::ForwardingStore {
 public:
  FailingStore(cluster::Store* store, absl::Status error, bool after)
      : ForwardingStore(store), error_(std::move(error)), after_(after) {}
  absl::StatusOr<std::string> CompareSet(absl::string_view key, absl::string_view expected,
                                         absl::string_view desired) override {
    if (after_) (void)ForwardingStore::CompareSet(key, expected, desired);
    return error_;
  }

 private:
  const absl::Status error_;
  const bool after_;
};

TEST(StoreBoardTest, TheOutcomeIsUnknownIfNobodyHasAnswered) {
  for (const bool after : {false, true}) {
    cluster::MemoryStore store;
    FailingStore failing(&store, absl::UnavailableError("away"), after);
    StoreBoard board(&failing);
    TANDEM_ASSERT_OK_AND_ASSIGN(const ps::CompareAndSetResult result,
                                board.CompareAndSet(0, 0, Document(1, "a"), kLimit));
    EXPECT_EQ(result.outcome, Outcome::kUnknown);
    EXPECT_THAT(result.error, StatusIs(absl::StatusCode::kUnavailable,
                                       AllOf(HasSubstr("ps/placement/0"), HasSubstr("away"))));
    EXPECT_EQ(StoreBoard(&store).Read(0, kLimit)->version(), after ? 1u : 0u);
  }
}

TEST(StoreBoardTest, AStoreThatRefusesHasChangedNothing) {
  cluster::MemoryStore store;
  FailingStore failing(&store, absl::ResourceExhaustedError("full"), /*after=*/false);
  StoreBoard board(&failing);
  EXPECT_THAT(board.CompareAndSet(0, 0, Document(1, "a"), kLimit),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("full")));
}

TEST(StoreBoardTest, AStoreThatIsGoneIsNamed) {
  auto server = cluster::StoreServer::Start("127.0.0.1:0").value();
  const std::string address = absl::StrCat("127.0.0.1:", server->port());
  StoreBoard board(std::shared_ptr<rpc::Channel>(cluster::ConnectStore(address).value()));
  TANDEM_ASSERT_OK(board.Read(0, kLimit).status());
  server->Shutdown(absl::ZeroDuration());
  server.reset();
  EXPECT_THAT(board.Read(0, absl::Milliseconds(1)),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr(address)));
}

// A store that needs half a second for an answer: a call that may not take longer fails, as in RemoteStore.
class SlowStore : public cluster::ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;
  absl::StatusOr<std::string> GetIfPresent(absl::string_view key, absl::Duration timeout) override {
    if (timeout < absl::Milliseconds(500)) return absl::UnavailableError("no answer");
    return ForwardingStore::GetIfPresent(key, timeout);
  }
};

TEST(StoreBoardTest, ABusyStoreIsWaitedFor) {
  cluster::MemoryStore store;
  SlowStore slow(&store);
  StoreBoard board(&slow);
  EXPECT_EQ(board.Read(0, kLimit)->version(), 0u);
  TANDEM_ASSERT_OK_AND_ASSIGN(const ps::CompareAndSetResult result,
                              board.CompareAndSet(0, 0, Document(1, "a"), kLimit));
  EXPECT_EQ(result.outcome, Outcome::kDone);
  EXPECT_EQ(board.Read(0, kLimit)->version(), 1u);
}

TEST(StoreBoardTest, TheStoreKnowsWhichProcessesLive) {
  SimulatedClock clock;
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto server, cluster::StoreServer::Start("127.0.0.1:0", &clock));
  StoreBoard board(std::shared_ptr<rpc::Channel>(
      cluster::ConnectStore(absl::StrCat("127.0.0.1:", server->port())).value()));
  EXPECT_EQ(board.IsAlive("10.0.0.1:7000", kLimit).value(), false);
  const auto beat = [&](bool leaving) {
    TANDEM_ASSERT_OK(server->membership()->Heartbeat("ps/0", absl::Seconds(10), leaving,
                                                     {.replaceable = true, .address = "10.0.0.1:7000"}));
  };
  beat(false);
  EXPECT_EQ(board.IsAlive("10.0.0.1:7000", kLimit).value(), true);
  EXPECT_EQ(board.IsAlive("10.0.0.1:7001", kLimit).value(), false);
  clock.Advance(absl::Seconds(11));
  EXPECT_EQ(board.IsAlive("10.0.0.1:7000", kLimit).value(), false);
  beat(true);
  EXPECT_EQ(board.IsAlive("10.0.0.1:7000", kLimit).value(), false);
  cluster::MemoryStore store;
  EXPECT_THAT(StoreBoard(&store).IsAlive("a:1", kLimit), StatusIs(absl::StatusCode::kUnimplemented));
}

TEST(AnnouncePrimaryTest, ThePrimaryOfTheTermIsAnnounced) {
  cluster::MemoryStore store;
  StoreBoard board(&store);
  TANDEM_ASSERT_OK(board.CompareAndSet(0, 0, Document(1, "a"), kLimit).status());
  TANDEM_ASSERT_OK(AnnouncePrimary(store, board, 0, 1, "a:1", kLimit));
  EXPECT_EQ(store.Get("ps/0", kLimit).value(), "a:1");
  // The announcement of a term that is over changes nothing.
  ShardPlacement next = Document(2, "b");
  next.set_term(2);
  TANDEM_ASSERT_OK(board.CompareAndSet(0, 1, next, kLimit).status());
  TANDEM_ASSERT_OK(AnnouncePrimary(store, board, 0, 1, "a:2", kLimit));
  EXPECT_EQ(store.Get("ps/0", kLimit).value(), "a:1");
}

// A store in which something else happens just before the first CompareSet of the key ps/0.
class InterruptedStore : public cluster::ForwardingStore {
 public:
  InterruptedStore(cluster::Store* store, std::function<void()> interruption)
      : ForwardingStore(store), interruption_(std::move(interruption)) {}
  absl::StatusOr<std::string> CompareSet(absl::string_view key, absl::string_view expected,
                                         absl::string_view desired) override {
    if (interruption_) std::exchange(interruption_, nullptr)();
    return ForwardingStore::CompareSet(key, expected, desired);
  }

 private:
  std::function<void()> interruption_;
};

TEST(AnnouncePrimaryTest, ALateAnnouncementDoesNotReplaceThatOfTheNextPrimary) {
  cluster::MemoryStore store;
  StoreBoard board(&store);
  TANDEM_ASSERT_OK(board.CompareAndSet(0, 0, Document(1, "a"), kLimit).status());
  TANDEM_ASSERT_OK(store.Set("ps/0", "old:1"));
  InterruptedStore overtaking(&store, [&] {
    ShardPlacement next = Document(2, "b");
    next.set_term(2);
    TANDEM_EXPECT_OK(board.CompareAndSet(0, 1, next, kLimit).status());
    TANDEM_EXPECT_OK(store.Set("ps/0", "b:1"));
  });
  TANDEM_ASSERT_OK(AnnouncePrimary(overtaking, board, 0, 1, "a:1", kLimit));
  EXPECT_EQ(store.Get("ps/0", kLimit).value(), "b:1");
}

TEST(AnnouncePrimaryTest, ThePrimaryReplacesALateAnnouncementOfAnEarlierOne) {
  cluster::MemoryStore store;
  StoreBoard board(&store);
  TANDEM_ASSERT_OK(board.CompareAndSet(0, 0, Document(1, "a"), kLimit).status());
  InterruptedStore late(&store, [&] { TANDEM_EXPECT_OK(store.Set("ps/0", "earlier:1")); });
  TANDEM_ASSERT_OK(AnnouncePrimary(late, board, 0, 1, "a:1", kLimit));
  EXPECT_EQ(store.Get("ps/0", kLimit).value(), "a:1");
}

TEST(StoreBoardTest, DocumentsAreJsonThatOtherVersionsMayHaveWritten) {
  cluster::MemoryStore store;
  StoreBoard board(&store);
  TANDEM_ASSERT_OK(board.CompareAndSet(7, 0, Document(1, "a"), kLimit).status());
  EXPECT_EQ(store.Get("ps/placement/7", absl::ZeroDuration()).value(),
            R"({"version":"1","term":"1","primary":{"id":"a","address":"10.0.0.1:7000"}})");
  // Other spaces and an unknown field: the text differs, the document does not.
  TANDEM_ASSERT_OK(store.Set("ps/placement/7", R"({ "version": 4, "term": 2, "colour": "red" })"));
  TANDEM_ASSERT_OK_AND_ASSIGN(const ShardPlacement placement, board.Read(7, kLimit));
  EXPECT_EQ(placement.version(), 4u);
  TANDEM_ASSERT_OK_AND_ASSIGN(const ps::CompareAndSetResult result,
                              board.CompareAndSet(7, 4, Document(5, "b"), kLimit));
  EXPECT_EQ(result.outcome, Outcome::kDone);
}

TEST(StoreBoardTest, OtherTextIsRefusedByItsKey) {
  cluster::MemoryStore store;
  for (const char* text : {"127.0.0.1:7000", "{}", "{\"version\": \"x\"}", "[1]"}) {
    TANDEM_ASSERT_OK(store.Set("ps/placement/2", text));
    StoreBoard board(&store);
    EXPECT_THAT(board.Read(2, kLimit), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("ps/placement/2")));
    EXPECT_THAT(board.CompareAndSet(2, 0, Document(1, "a"), kLimit), StatusIs(absl::StatusCode::kDataLoss));
  }
}

// Tests of failover rely on these properties of the fake.
TEST(MemoryBoardTest, ALateChangeArrivesUnlessAnotherOneCameFirst) {
  auto documents = std::make_shared<testing::MemoryDocuments>();
  MemoryBoard one(documents), other(documents);
  one.SetFault(MemoryBoard::Fault::kLate);
  EXPECT_EQ(one.CompareAndSet(0, 0, Document(1, "a"), kLimit)->outcome, Outcome::kUnknown);
  EXPECT_EQ(other.Read(0, kLimit)->version(), 0u);
  one.DeliverLate();
  EXPECT_EQ(other.Read(0, kLimit)->primary().id(), "a");
  EXPECT_EQ(one.CompareAndSet(0, 1, Document(2, "b"), kLimit)->outcome, Outcome::kUnknown);
  EXPECT_EQ(other.CompareAndSet(0, 1, Document(2, "c"), kLimit)->outcome, Outcome::kDone);
  one.DeliverLate();
  EXPECT_EQ(other.Read(0, kLimit)->primary().id(), "c");
}

}  // namespace
}  // namespace tandem::ps
