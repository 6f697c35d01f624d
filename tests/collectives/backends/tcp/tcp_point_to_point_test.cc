// SPDX-License-Identifier: Apache-2.0
// Messages between two ranks over TCP: order, tags, sources, sizes, and messages that do not fit.

#include <vector>

#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "collectives/backends/tcp/tcp_backend.h"
#include "tests/collectives/backends/backend_fixture.h"

namespace tandem::collectives {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Zero, one, small, the largest eager message, larger, many chunks.
constexpr size_t kCounts[] = {0, 1, 1000, 16 << 10, (16 << 10) + 1, 3 << 20};

TEST(TcpPointToPointTest, MessagesOfAllSizesArriveWithTheirSender) {
  RunRanks(TcpBackendFactory(), 3, [](Backend& backend, int rank) {
    for (const size_t count : kCounts) {
      if (rank == 0) {
        for (const int from : {1, 2}) {
          std::vector<float> values(count);
          const absl::StatusOr<int> source = backend.RunPointToPoint(RecvOf(&values, from, 5));
          TANDEM_ASSERT_OK(source);
          EXPECT_EQ(*source, from);
          EXPECT_EQ(values, std::vector<float>(count, static_cast<float>(from)));
        }
      } else {
        TANDEM_ASSERT_OK(
            backend.RunPointToPoint(MakeSend(std::vector<float>(count, static_cast<float>(rank)), 0, 5)));
      }
    }
    TANDEM_ASSERT_OK(backend.Run(MakeBarrier(0)));
  });
}

TEST(TcpPointToPointTest, AMessageWaitsForAReceiveOfItsTag) {
  RunRanks(TcpBackendFactory(), 2, [](Backend& backend, int rank) {
    for (const size_t count : kCounts) {
      const std::vector<float> first(count, 1.0f), second(count, 2.0f), third(count, 3.0f);
      std::vector<float> got(count);
      if (rank == 0) {
        absl::BlockingCounter done(3);
        auto sent = [&](absl::StatusOr<int> status) {
          TANDEM_EXPECT_OK(status);
          done.DecrementCount();
        };
        backend.StartPointToPoint(MakeSend(first, 1, 1), sent);
        backend.StartPointToPoint(MakeSend(second, 1, 2), sent);
        backend.StartPointToPoint(MakeSend(third, 1, 1), sent);
        done.Wait();
      } else {
        TANDEM_ASSERT_OK(backend.RunPointToPoint(RecvOf(&got, 0, 2)));
        EXPECT_EQ(got, second);
        TANDEM_ASSERT_OK(backend.RunPointToPoint(RecvOf(&got, 0, 1)));
        EXPECT_EQ(got, first);
        TANDEM_ASSERT_OK(backend.RunPointToPoint(RecvOf(&got, kAnySource, 1)));
        EXPECT_EQ(got, third);
      }
    }
    TANDEM_ASSERT_OK(backend.Run(MakeBarrier(0)));
  });
}

TEST(TcpPointToPointTest, AReceiveFromAnyRankTakesEachMessageOnce) {
  constexpr int kWorld = 4, kEach = 20;
  RunRanks(TcpBackendFactory(), kWorld, [](Backend& backend, int rank) {
    for (const size_t count : {size_t{3}, size_t{50000}}) {
      const uint32_t tag = static_cast<uint32_t>(count);
      if (rank != 0) {
        for (int i = 0; i < kEach; ++i) {
          TANDEM_ASSERT_OK(
              backend.RunPointToPoint(MakeSend(std::vector<float>(count, static_cast<float>(i)), 0, tag)));
        }
        continue;
      }
      std::vector<int> next(kWorld, 0);
      for (int i = 0; i < kEach * (kWorld - 1); ++i) {
        std::vector<float> values(count);
        const absl::StatusOr<int> source = backend.RunPointToPoint(RecvOf(&values, kAnySource, tag));
        TANDEM_ASSERT_OK(source);
        EXPECT_EQ(values.back(), static_cast<float>(next[*source]++)) << "of rank " << *source;
      }
      EXPECT_EQ(next, (std::vector<int>{0, kEach, kEach, kEach}));
    }
    TANDEM_ASSERT_OK(backend.Run(MakeBarrier(0)));
  });
}

TEST(TcpPointToPointTest, MoreMessagesThanTheReceiverKeepsArriveInOrder) {
  constexpr int kMessages = 400;  // of 40 KB each
  RunRanks(TcpBackendFactory(), 2, [](Backend& backend, int rank) {
    if (rank == 0) {
      std::vector<std::vector<float>> values(kMessages);
      absl::BlockingCounter done(kMessages);
      for (int i = 0; i < kMessages; ++i) {
        values[i].assign(10000, static_cast<float>(i));
        backend.StartPointToPoint(MakeSend(values[i], 1), [&](absl::StatusOr<int> status) {
          TANDEM_EXPECT_OK(status);
          done.DecrementCount();
        });
      }
      TANDEM_ASSERT_OK(backend.Run(MakeBarrier(0)));  // concurrently with them
      done.Wait();
    } else {
      TANDEM_ASSERT_OK(backend.Run(MakeBarrier(0)));
      for (int i = 0; i < kMessages; ++i) {
        std::vector<float> got(10000);
        TANDEM_ASSERT_OK(backend.RunPointToPoint(RecvOf(&got, 0)));
        EXPECT_EQ(got.front(), static_cast<float>(i));
      }
    }
    TANDEM_ASSERT_OK(backend.Run(MakeBarrier(1)));
  });
}

TEST(TcpPointToPointTest, ARingOfBlockingSendsEndsUpTo16MiB) {
  for (const size_t bytes : {size_t{64 << 10} + 4, size_t{16 << 20}}) {
    RunRanks(TcpBackendFactory(), 3, [&](Backend& backend, int rank) {
      const std::vector<float> out(bytes / sizeof(float), static_cast<float>(rank));
      std::vector<float> in(out.size());
      TANDEM_ASSERT_OK(backend.RunPointToPoint(MakeSend(out, (rank + 1) % 3)));
      TANDEM_ASSERT_OK(backend.RunPointToPoint(RecvOf(&in, (rank + 2) % 3)));
      EXPECT_EQ(in, std::vector<float>(out.size(), static_cast<float>((rank + 2) % 3)));
    });
  }
}

TEST(TcpPointToPointTest, MessagesCrossACollectiveThatWaits) {
  RunRanks(TcpBackendFactory(), 2, [](Backend& backend, int rank) {
    std::vector<float> sum(3 << 20, 1.0f), message(2 << 20, 4.0f);
    if (rank == 0) {
      std::thread collective([&] { TANDEM_EXPECT_OK(backend.Run(AllReduceOf(&sum, 0))); });
      // Rank 1 joins the collective only after it has received this message.
      TANDEM_EXPECT_OK(backend.RunPointToPoint(MakeSend(message, 1)));
      collective.join();
    } else {
      std::vector<float> got(message.size());
      TANDEM_ASSERT_OK(backend.RunPointToPoint(RecvOf(&got, 0)));
      EXPECT_EQ(got, message);
      TANDEM_ASSERT_OK(backend.Run(AllReduceOf(&sum, 0)));
    }
    EXPECT_EQ(sum.back(), 2.0f);
  });
}

TEST(TcpPointToPointTest, AMessageThatDoesNotFitIsNamedAndDropped) {
  RunRanks(TcpBackendFactory(), 2, [](Backend& backend, int rank) {
    for (const bool posted_first : {false, true}) {
      for (const size_t count : {size_t{10}, size_t{100000}}) {
        const uint64_t sequence = 2 * (count > 10) + 4 * posted_first;
        std::vector<float> values(count, 1.0f), got(count + 1, 0.0f);
        if (rank == 0) {
          if (posted_first) {
            TANDEM_ASSERT_OK(backend.Run(MakeBarrier(sequence)));
          }
          TANDEM_ASSERT_OK(backend.RunPointToPoint(MakeSend(values, 1, 1)));
          TANDEM_ASSERT_OK(backend.RunPointToPoint(MakeSend(values, 1, 1)));
          if (!posted_first) {
            TANDEM_ASSERT_OK(backend.Run(MakeBarrier(sequence)));
          }
        } else {
          absl::Notification done;
          absl::Status status;
          if (posted_first) {
            backend.StartPointToPoint(RecvOf(&got, 0, 1), [&](absl::StatusOr<int> source) {
              status = source.status();
              done.Notify();
            });
            TANDEM_ASSERT_OK(backend.Run(MakeBarrier(sequence)));
            done.WaitForNotification();
          } else {
            if (count == 10) {
              TANDEM_ASSERT_OK(backend.Run(MakeBarrier(sequence)));
            }
            status = backend.RunPointToPoint(RecvOf(&got, 0, 1)).status();
          }
          EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                                       AllOf(HasSubstr(absl::StrCat("f32 x ", count, " ")),
                                             HasSubstr(absl::StrCat("f32 x ", count + 1, " ")))));
          EXPECT_EQ(got, std::vector<float>(count + 1, 0.0f));
          // The next message is not affected.
          got.resize(count);
          TANDEM_ASSERT_OK(backend.RunPointToPoint(RecvOf(&got, 0, 1)));
          EXPECT_EQ(got, values);
          if (!posted_first && count > 10) {
            TANDEM_ASSERT_OK(backend.Run(MakeBarrier(sequence)));
          }
        }
      }
    }
  });
}

TEST(TcpPointToPointTest, AReceiveWithoutAMessageEndsByItsDeadline) {
  absl::Notification failed;
  RunRanks(TcpBackendFactory(), 2, [&](Backend& backend, int rank) {
    std::vector<float> values(4);
    if (rank == 0) {
      const absl::Status status =
          backend.RunPointToPoint(RecvOf(&values, 1, 3, absl::Milliseconds(200))).status();
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kDeadlineExceeded,
                                   AllOf(HasSubstr("recv #0"), HasSubstr("rank 1 has not sent"))));
      EXPECT_EQ(backend.Run(MakeBarrier(0)), status);
      failed.Notify();
    } else {
      failed.WaitForNotification();
      EXPECT_THAT(backend.RunPointToPoint(MakeSend(values, 0, 3)).status(),
                  StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("recv #0")));
    }
  });
}

TEST(TcpPointToPointTest, ASendToAFailingRankReturnsItsReason) {
  for (int round = 0; round < 60; ++round) {
    RunRanks(TcpBackendFactory(), 2, [&](Backend& backend, int rank) {
      std::vector<float> values(4);
      absl::Status status;
      if (rank == 0) {
        status = backend.RunPointToPoint(RecvOf(&values, 1, 3, absl::Milliseconds(2))).status();
      } else {
        // This message has another tag; it can be sent without being received.
        while (status.ok()) status = backend.RunPointToPoint(MakeSend(values, 0, 4)).status();
      }
      ASSERT_THAT(status, StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("recv #0")));
    });
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(TcpPointToPointTest, ALeavingRankFailsOnlyItsOwnMessages) {
  cluster::MemoryStore store;
  std::vector<std::thread> ranks;
  absl::Notification left;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      BackendOptions options = OptionsOf(&store, rank, {"a", "a", "a"});
      if (rank == 2) options.timeout = absl::Milliseconds(100);
      auto backend = TcpBackendFactory().make(options);
      TANDEM_ASSERT_OK(backend);
      std::vector<float> values(100000, 1.0f);
      if (rank == 2) {
        TANDEM_ASSERT_OK((*backend)->RunPointToPoint(RecvOf(&values, 0, 1)));
        backend->reset();
        left.Notify();
        return;
      }
      if (rank == 0) {
        TANDEM_ASSERT_OK((*backend)->RunPointToPoint(MakeSend(values, 2, 1)));
        EXPECT_THAT((*backend)->RunPointToPoint(RecvOf(&values, 2, 1)).status(),
                    StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank 2 has left the group")));
        left.WaitForNotification();
        TANDEM_EXPECT_OK((*backend)->RunPointToPoint(MakeSend(values, 1, 1)));
      } else {
        TANDEM_EXPECT_OK((*backend)->RunPointToPoint(RecvOf(&values, 0, 1)));
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

}  // namespace
}  // namespace tandem::collectives
