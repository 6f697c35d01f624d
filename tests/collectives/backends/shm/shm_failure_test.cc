// SPDX-License-Identifier: Apache-2.0
// Ranks that disagree, do not come, or leave: every case ends on all ranks, with an error that names the
// rank.

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <barrier>
#include <cstring>
#include <string>
#include <vector>

#include "absl/synchronization/barrier.h"
#include "absl/synchronization/notification.h"
#include "base/ipc/unix_socket.h"
#include "collectives/backends/shm/shm_backend.h"
#include "tests/collectives/backends/backend_fixture.h"

namespace tandem::collectives {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Each rank runs `operation(rank)`; all must fail with `expected`, and return the same error again.
void ExpectAllFail(int world, const std::function<Operation(int)>& operation,
                   ::testing::Matcher<const std::string&> message,
                   absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
  RunRanks(ShmBackendFactory(), world, [&](Backend& backend, int rank) {
    TANDEM_ASSERT_OK(backend.Run(MakeBarrier(0)));
    const absl::Status status = backend.Run(operation(rank));
    EXPECT_THAT(status, StatusIs(code, message)) << "rank " << rank;
    EXPECT_EQ(backend.Run(MakeBarrier(2)), status);
    EXPECT_EQ(backend.RunPointToPoint(MakeSend({1}, 0)).status(), status);
  });
}

TEST(ShmDisagreementTest, AnotherKindIsFoundOnAllRanks) {
  std::vector<std::vector<float>> values(3, std::vector<float>(10));
  ExpectAllFail(
      3, [&](int rank) { return rank == 2 ? MakeBarrier(1) : AllReduceOf(&values[rank], 1); },
      AllOf(HasSubstr("group 'test' disagree"), HasSubstr("all_reduce #1 (sum of f32 x 10)"),
            HasSubstr("rank 2 calls barrier #1")));
}

TEST(ShmDisagreementTest, AnotherSizeIsFoundOnAllRanks) {
  // Includes pairs in which one rank uses the post and the other the stage.
  for (const size_t other : {11, 1000, 5000, 500000}) {
    std::vector<std::vector<float>> values(4, std::vector<float>(10));
    values[1].resize(other);
    ExpectAllFail(
        4, [&](int rank) { return AllReduceOf(&values[rank], 1); },
        AllOf(HasSubstr(absl::StrCat("rank 1 calls all_reduce #1 (sum of f32 x ", other, ")")),
              HasSubstr("(sum of f32 x 10)")));
  }
}

TEST(ShmDisagreementTest, AnotherDtypeReductionRootOrSequenceIsFoundOnAllRanks) {
  const std::vector<std::function<void(Operation&)>> changes = {
      [](Operation& o) { o.dtype = DType::kI32; }, [](Operation& o) { o.reduce = ReduceOp::kMax; },
      [](Operation& o) { o.root = 1; }, [](Operation& o) { o.sequence = 7; }};
  for (const auto& change : changes) {
    std::vector<std::vector<float>> values(2, std::vector<float>(4));
    ExpectAllFail(
        2,
        [&](int rank) {
          Operation operation = AllReduceOf(&values[rank], 1);
          operation.kind = OpKind::kReduce;
          if (rank == 1) change(operation);
          return operation;
        },
        HasSubstr("disagree: rank 0 calls reduce #1 (sum of f32 x 4 to rank 0), rank 1 calls reduce #"));
  }
}

TEST(ShmDisagreementTest, UnevenPairsThatDoNotFitAreFoundOnAllRanks) {
  std::vector<std::vector<float>> in(3, std::vector<float>(30)), out = in;
  std::vector<std::vector<ConstPart>> ins(3);
  std::vector<std::vector<Part>> outs(3);
  for (int rank = 0; rank < 3; ++rank) {
    for (int s = 0; s < 3; ++s) {
      ins[rank].push_back({in[rank].data() + 10 * s, 5});
      outs[rank].push_back({out[rank].data() + 10 * s, 5});
    }
  }
  ins[1][2].count = 6;
  ExpectAllFail(
      3,
      [&](int rank) {
        Operation operation;
        operation.kind = OpKind::kAllToAll;
        operation.dtype = DType::kF32;
        operation.sequence = 1;
        operation.even = false;
        operation.ins = ins[rank];
        operation.outs = outs[rank];
        operation.timeout = absl::Seconds(60);
        return operation;
      },
      HasSubstr("rank 1 gives rank 2 6 elements, but rank 2 expects 5 from it"));
}

TEST(ShmTimeoutTest, AMissingCallEndsOnAllRanksNamingTheOperationAndTheAbsent) {
  for (const int world : {2, 4}) {
    absl::Barrier* const all_done = new absl::Barrier(world);  // deleted by the last rank
    std::barrier<> all_here(world);
    RunRanks(ShmBackendFactory(), world, [&](Backend& backend, int rank) {
      std::vector<float> values(100000);
      all_here.arrive_and_wait();
      if (rank != 1) {
        EXPECT_THAT(backend.Run(AllReduceOf(&values, 0, absl::Seconds(2))),
                    StatusIs(absl::StatusCode::kDeadlineExceeded,
                             AllOf(HasSubstr("all_reduce #0 (sum of f32 x 100000) of group 'test' timed out"),
                                   HasSubstr(": rank 1 did not come"))));
      }
      if (all_done->Block()) delete all_done;
      if (rank == 1) {  // too late: it gets the error of the others
        EXPECT_THAT(backend.Run(AllReduceOf(&values, 0)),
                    StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("rank 1 did not come")));
      }
    });
  }
}

TEST(ShmAbortTest, AnAbortEndsTheWaitsOfAllRanks) {
  absl::Notification aborted;
  RunRanks(ShmBackendFactory(), 3, [&](Backend& backend, int rank) {
    if (rank == 1) {
      std::thread other([&] { backend.Abort(absl::AbortedError("the loss is not a number")); });
      other.join();
      EXPECT_EQ(backend.Run(MakeBarrier(0)), absl::AbortedError("the loss is not a number"));
      aborted.Notify();
    } else {
      EXPECT_THAT(backend.Run(MakeBarrier(0)),
                  StatusIs(absl::StatusCode::kAborted, "rank 1 aborted the group: the loss is not a number"));
    }
    aborted.WaitForNotification();
    backend.Abort(absl::AbortedError("again"));  // changes nothing
    EXPECT_THAT(backend.Run(MakeBarrier(1)),
                StatusIs(absl::StatusCode::kAborted, HasSubstr("the loss is not a number")));
  });
}

TEST(ShmLeaveTest, ALeavingRankFailsOnlyOperationsThatNeedIt) {
  RunRanks(ShmBackendFactory(), 3, [&](Backend& backend, int rank) {
    std::vector<float> values(300000, 1.0f);
    TANDEM_ASSERT_OK(backend.Run(AllReduceOf(&values, 0)));
    EXPECT_EQ(values, std::vector<float>(300000, 3.0f));
    if (rank == 2) return;  // leaves, perhaps while the others still read what it has reduced
    EXPECT_THAT(backend.Run(AllReduceOf(&values, 1)),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank 2 has left the group")));
  });
}

TEST(ShmViableTest, RanksOfDifferentHostsAreRefused) {
  cluster::MemoryStore store;
  const BackendOptions options = OptionsOf(&store, 0, {"a", "a", "b"});
  EXPECT_THAT(ShmBackendFactory().viable(options),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("rank 0 is on 'a'"), HasSubstr("rank 2 on 'b'"))));
  TANDEM_EXPECT_OK(ShmBackendFactory().viable(OptionsOf(&store, 0, {"a", "a"})));
}

TEST(ShmSetUpTest, AnAbsentRankIsNamed) {
  cluster::MemoryStore store;
  std::vector<std::thread> ranks;
  for (const int rank : {0, 2}) {
    ranks.emplace_back([&, rank] {
      BackendOptions options = OptionsOf(&store, rank, {"h", "h", "h", "h"});
      for (int s = 0; s < 4; ++s) options.peers[s].pid = s;  // no threads of one process
      options.deadline = absl::Now() + absl::Seconds(rank == 0 ? 2 : 30);
      EXPECT_THAT(ShmBackendFactory().make(options).status(),
                  StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("rank 1, rank 3 did not come")));
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST(ShmSetUpTest, ARankThatRankZeroDoesNotKnowYetGetsTheReasonToo) {
  cluster::MemoryStore store;
  // The test takes the place of rank 0, which gives up between the connection and the greeting.
  const std::string name = absl::StrCat("tandem-shm-test-", ipc::RandomToken());
  TANDEM_ASSERT_OK_AND_ASSIGN(const ipc::Descriptor listener, ipc::ListenAbstract(name, 1));
  TANDEM_ASSERT_OK(store.Set("shm/leader", absl::StrCat(name, " ", ipc::RandomToken())));
  std::thread late([&] {
    BackendOptions options = OptionsOf(&store, 1, {"h", "h"});
    for (int s = 0; s < 2; ++s) options.peers[s].pid = s;  // no threads of one process
    EXPECT_THAT(ShmBackendFactory().make(options).status(),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("the memory is used up")));
  });
  pollfd comes = {listener.get(), POLLIN, 0};
  EXPECT_EQ(poll(&comes, 1, 30'000), 1);
  ipc::Descriptor connection = ipc::AcceptAbstract(listener.get());
  TANDEM_EXPECT_OK(store.Set("shm/leader", "!the memory is used up"));
  connection.Reset();
  late.join();
}

TEST(ShmSetUpTest, AProcessWithoutTheSecretGetsNothing) {
  cluster::MemoryStore store;
  const auto make = [&](int rank) {
    auto backend = ShmBackendFactory().make(OptionsOf(&store, rank, {"h", "h"}));
    TANDEM_ASSERT_OK(backend);
    TANDEM_EXPECT_OK((*backend)->Run(MakeBarrier(0)));
  };
  std::thread leader([&] { make(0); });
  const auto address = store.Get("shm/leader", absl::Seconds(30));
  TANDEM_EXPECT_OK(address);
  const std::string name = address->substr(0, address->find(' '));
  sockaddr_un to = {};
  to.sun_family = AF_UNIX;
  std::memcpy(to.sun_path + 1, name.data(), name.size());
  const int outsider = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  EXPECT_EQ(
      connect(outsider, reinterpret_cast<sockaddr*>(&to), offsetof(sockaddr_un, sun_path) + 1 + name.size()),
      0);
  const std::string guess(48, 'x');
  EXPECT_EQ(send(outsider, guess.data(), guess.size(), MSG_NOSIGNAL), 48);
  char response[64];
  EXPECT_LE(recv(outsider, response, sizeof(response), 0), 0);  // the connection is closed
  close(outsider);
  make(1);
  leader.join();
}

}  // namespace
}  // namespace tandem::collectives
