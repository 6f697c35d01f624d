// SPDX-License-Identifier: Apache-2.0
// Gloo's transport below the backend, without the comparison that keeps wrong calls from it: what would end
// the process or hang becomes an exception of the operation.

#include "collectives/backends/gloo/transport.h"

#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "collectives/backends/gloo/algorithms.h"
#include "tests/collectives/backends/backend_fixture.h"

namespace tandem::collectives::gloo_library {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Rank {
  int rank;
  OperationGuard guard;
  std::shared_ptr<::gloo::Context> context;
  Memory memory;

  // Returns the text of the exception, or "".
  std::string Run(const Operation& operation, absl::Time deadline = absl::InfiniteFuture()) {
    const SigpipeBlock block;
    guard.Begin(deadline);
    try {
      RunAlgorithm(operation, context, &memory);
    } catch (const std::exception& error) {
      return absl::StrCat("it failed: ", TextOf(error));
    }
    return "";
  }
};

// Runs `body` for each rank, each on a thread of its own; all connections live until all bodies are done.
void RunRanks(int world_size, const std::function<void(Rank&)>& body) {
  cluster::MemoryStore store;
  std::vector<std::unique_ptr<Rank>> ranks(world_size);
  std::vector<std::thread> threads;
  for (int r = 0; r < world_size; ++r) {
    ranks[r] = std::make_unique<Rank>();
    ranks[r]->rank = r;
    threads.emplace_back([&, r] {
      auto context = ConnectGloo(&store, r, world_size, "127.0.0.1", MonotonicNow() + absl::Seconds(30),
                                 &ranks[r]->guard);
      TANDEM_ASSERT_OK(context);
      ranks[r]->context = *std::move(context);
      body(*ranks[r]);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

Operation BroadcastOf(std::vector<char>* bytes, int root) {
  Operation operation;
  operation.kind = OpKind::kBroadcast;
  operation.root = root;
  operation.in = {bytes->data(), bytes->size()};
  operation.out = {bytes->data(), bytes->size()};
  return operation;
}

TEST(GlooTransportTest, DataThatFitsNoReceiveDoesNotEndTheProcess) {
  RunRanks(2, [](Rank& rank) {
    std::vector<char> bytes(rank.rank == 0 ? 1000 : 10);
    const std::string failure = rank.Run(BroadcastOf(&bytes, 0), MonotonicNow() + absl::Seconds(20));
    if (rank.rank == 0) return;  // its data may be sent before the connection ends
    EXPECT_NE(failure, "");
    EXPECT_THAT(rank.guard.stopped(),
                testing::StatusIs(absl::StatusCode::kUnavailable,
                                  HasSubstr("the connection to rank 0 failed in Gloo's thread")));
  });
}

TEST(GlooTransportTest, AnOperationEndsAtItsDeadlineAndNamesTheRanksItWaitsFor) {
  RunRanks(3, [](Rank& rank) {
    if (rank.rank != 0) return;
    std::vector<char> bytes(10);
    const absl::Time start = MonotonicNow();
    EXPECT_NE(rank.Run(BroadcastOf(&bytes, 2), start + absl::Milliseconds(200)), "");
    EXPECT_GE(MonotonicNow() - start, absl::Milliseconds(200));
    EXPECT_LT(MonotonicNow() - start, absl::Seconds(10));
    EXPECT_THAT(rank.guard.late(), ElementsAre(2));
  });
}

TEST(GlooTransportTest, StoppingTheGuardEndsAWait) {
  RunRanks(2, [](Rank& rank) {
    if (rank.rank != 0) return;
    std::vector<char> bytes(10);
    std::thread other([&] { rank.guard.Stop(absl::CancelledError("enough")); });
    EXPECT_THAT(rank.Run(BroadcastOf(&bytes, 1)), HasSubstr("enough"));
    EXPECT_THAT(rank.Run(BroadcastOf(&bytes, 1)), HasSubstr("enough"));  // and later ones
    other.join();
  });
}

TEST(GlooTransportTest, ConnectingEndsAtItsDeadline) {
  cluster::MemoryStore store;
  OperationGuard guard;
  EXPECT_THAT(
      ConnectGloo(&store, 0, 2, "127.0.0.1", MonotonicNow() + absl::Milliseconds(100), &guard).status(),
      testing::StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("Gloo's rendezvous")));
}

void RefuseBytesOfAStranger() {
  cluster::MemoryStore store;
  OperationGuard guard;
  absl::Status status;
  std::thread rank([&] {
    status = ConnectGloo(&store, 0, 2, "127.0.0.1", MonotonicNow() + absl::Seconds(30), &guard).status();
  });
  // The first bytes that Gloo publishes are the address on which rank 0 awaits rank 1.
  const absl::StatusOr<std::string> published = store.Get("0", absl::Seconds(20));
  sockaddr_in address = {};
  if (published.ok() && published->size() >= sizeof(address)) {
    std::memcpy(&address, published->data(), sizeof(address));
  }
  const int stranger = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(connect(stranger, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  const size_t head[] = {48, 1, 7, 0, 100, 0};  // Gloo's: 100 bytes for slot 7, where nothing is awaited
  EXPECT_EQ(send(stranger, head, sizeof(head), MSG_NOSIGNAL), static_cast<ssize_t>(sizeof(head)));
  EXPECT_THAT(guard.AwaitStop(absl::Seconds(20)),
              testing::StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank 1 failed in Gloo's thread")));
  TANDEM_EXPECT_OK(store.Set("1", "no address"));
  rank.join();
  EXPECT_THAT(status, testing::StatusIs(absl::StatusCode::kUnavailable, HasSubstr("Gloo cannot connect")));
  close(stranger);
}

// Several times, because Gloo's thread may find the connection while another thread closes it.
TEST(GlooTransportTest, TheBytesOfAStrangerDoNotEndTheProcess) {
  for (int round = 0; round < 50 && !::testing::Test::HasFailure(); ++round) RefuseBytesOfAStranger();
}

TEST(SigpipeBlockTest, ASignalOfTheBlockIsDropped) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  close(ends[0]);
  {
    const SigpipeBlock block;
    EXPECT_EQ(write(ends[1], "x", 1), -1);  // would end the process
  }
  sigset_t pending;
  ASSERT_EQ(sigpending(&pending), 0);
  EXPECT_EQ(sigismember(&pending, SIGPIPE), 0);
  close(ends[1]);
}

}  // namespace
}  // namespace tandem::collectives::gloo_library
