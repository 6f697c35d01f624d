// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <barrier>
#include <cstdlib>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "collectives/backends/shm/point_to_point.h"
#include "collectives/backends/shm/shm_backend.h"
#include "tests/collectives/backends/backend_fixture.h"

namespace tandem::collectives {
namespace {

using shm::kMostUnexpectedBytes;
using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<float> Numbers(size_t count, float first) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), first);
  return values;
}

// An asynchronous transfer and its end.
struct Pending {
  absl::Notification done;
  absl::StatusOr<int> source = 0;
  void Start(Backend& backend, const Operation& operation) {
    backend.StartPointToPoint(operation, [this](absl::StatusOr<int> result) {
      source = std::move(result);
      done.Notify();
    });
  }
  absl::StatusOr<int> Wait() {
    if (done.WaitForNotificationWithTimeout(absl::Seconds(60))) return source;
    ADD_FAILURE() << "a transfer has not ended";
    std::abort();  // it refers to this object
  }
};

// Includes zero, and more than a ring holds.
constexpr size_t kCounts[] = {0, 1, 7, 8, 9, 1000, 100'000, 1'500'001};

TEST(ShmPointToPointTest, MessagesOfAllSizesArriveInOrder) {
  for (const int world : {2, 3}) {
    RunRanks(ShmBackendFactory(), world, [&](Backend& backend, int rank) {
      for (const size_t count : kCounts) {
        const std::vector<float> out = Numbers(count, rank),
                                 want = Numbers(count, (rank + world - 1) % world);
        std::vector<float> in(count);
        Pending sent;
        sent.Start(backend, MakeSend(out, (rank + 1) % world));
        const auto source = backend.RunPointToPoint(RecvOf(&in, (rank + world - 1) % world));
        TANDEM_ASSERT_OK(source);
        EXPECT_EQ(*source, (rank + world - 1) % world);
        EXPECT_EQ(in, want);
        TANDEM_ASSERT_OK(sent.Wait());
      }
    });
  }
}

TEST(ShmPointToPointTest, BlockingPingPongBesideCollectives) {
  RunRanks(ShmBackendFactory(), 2, [&](Backend& backend, int rank) {
    std::thread collectives([&] {
      for (uint64_t i = 0; i < 300; ++i) {
        std::vector<float> values(1 + i * 37, 1.0f);
        TANDEM_ASSERT_OK(backend.Run(AllReduceOf(&values, i)));
        EXPECT_EQ(values.back(), 2.0f);
      }
    });
    std::vector<float> values(3);
    for (int i = 0; i < 300; ++i) {
      const std::vector<float> ball = Numbers(3, static_cast<float>(i));
      if (rank == 0) {
        TANDEM_ASSERT_OK(backend.RunPointToPoint(MakeSend(ball, 1)));
      }
      TANDEM_ASSERT_OK(backend.RunPointToPoint(RecvOf(&values, 1 - rank)));
      EXPECT_EQ(values, ball);
      if (rank == 1) {
        TANDEM_ASSERT_OK(backend.RunPointToPoint(MakeSend(values, 0)));
      }
    }
    collectives.join();
  });
}

TEST(ShmPointToPointTest, TagsPickMessagesOutOfOrder) {
  RunRanks(ShmBackendFactory(), 2, [&](Backend& backend, int rank) {
    if (rank == 0) {
      for (uint32_t tag = 0; tag < 20; ++tag) {
        TANDEM_ASSERT_OK(backend.RunPointToPoint(MakeSend({static_cast<float>(tag), 1}, 1, tag)));
      }
      return;
    }
    for (uint32_t tag = 20; tag-- > 0;) {
      std::vector<float> values(2);
      TANDEM_ASSERT_OK(backend.RunPointToPoint(RecvOf(&values, 0, tag)));
      EXPECT_EQ(values[0], tag);
    }
  });
}

TEST(ShmPointToPointTest, AnySourceTellsWhoSent) {
  RunRanks(ShmBackendFactory(), 4, [&](Backend& backend, int rank) {
    if (rank > 0) {
      TANDEM_ASSERT_OK(backend.RunPointToPoint(MakeSend({static_cast<float>(rank)}, 0, 5)));
    } else {
      std::vector<bool> came(4, false);
      for (int i = 1; i < 4; ++i) {
        std::vector<float> value(1);
        const auto source = backend.RunPointToPoint(RecvOf(&value, kAnySource, 5));
        TANDEM_ASSERT_OK(source);
        EXPECT_EQ(value[0], *source);
        EXPECT_FALSE(came[*source]);
        came[*source] = true;
      }
    }
    TANDEM_ASSERT_OK(backend.Run(MakeBarrier(0)));
  });
}

TEST(ShmPointToPointTest, UnexpectedMessagesBeyondTheBoundStayWithTheirSender) {
  const size_t large = kMostUnexpectedBytes / sizeof(float) / 2 + 1000;
  RunRanks(ShmBackendFactory(), 2, [&](Backend& backend, int rank) {
    if (rank == 0) {
      for (int i = 0; i < 3; ++i) {
        const std::vector<float> values(large, static_cast<float>(i));
        TANDEM_ASSERT_OK(backend.RunPointToPoint(MakeSend(values, 1, i)));
      }
      return;
    }
    // The first message is kept; the second is announced, and its send ends when it has been received.
    std::vector<std::vector<float>> values(3, std::vector<float>(large));
    for (int i = 0; i < 3; ++i) {
      TANDEM_ASSERT_OK(backend.RunPointToPoint(RecvOf(&values[i], 0, i)));
      EXPECT_EQ(values[i], std::vector<float>(large, static_cast<float>(i)));
    }
  });
}

TEST(ShmPointToPointTest, AnnouncedMessagesDelayNoLaterOnes) {
  const size_t large = kMostUnexpectedBytes / sizeof(float) + 1;
  for (const int world : {2, 3}) {
    RunRanks(ShmBackendFactory(), world, [&](Backend& backend, int rank) {
      const std::vector<float> big = Numbers(large, 0.5f);
      if (rank == 0) {
        Pending first, second;
        first.Start(backend, MakeSend(big, 1, 1));
        second.Start(backend, MakeSend(big, 1, 2));
        // Blocking, although the others are not received yet.
        TANDEM_ASSERT_OK(backend.RunPointToPoint(MakeSend({7}, 1, 3)));
        TANDEM_ASSERT_OK(first.Wait());
        TANDEM_ASSERT_OK(second.Wait());
      } else if (rank == 1) {
        std::vector<float> small(1), values(large);
        TANDEM_ASSERT_OK(backend.RunPointToPoint(RecvOf(&small, 0, 3)));
        EXPECT_EQ(small[0], 7);
        // One recv is too small for its message, which then is not sent.
        std::vector<float> wrong(large - 1);
        EXPECT_THAT(backend.RunPointToPoint(RecvOf(&wrong, kAnySource, 2)).status(),
                    StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rank 0 sent f32 x")));
        TANDEM_ASSERT_OK(backend.RunPointToPoint(RecvOf(&values, kAnySource, 1)));
        EXPECT_EQ(values, big);
      }
      TANDEM_ASSERT_OK(backend.Run(MakeBarrier(0)));
    });
  }
}

TEST(ShmPointToPointTest, ARingOfBlockingSendsEndsUpTo16MiB) {
  for (const size_t bytes : {shm::CreditBytes(3) + 4, kMostUnexpectedBytes}) {
    RunRanks(ShmBackendFactory(), 3, [&](Backend& backend, int rank) {
      const std::vector<float> out(bytes / sizeof(float), static_cast<float>(rank));
      std::vector<float> in(out.size());
      TANDEM_ASSERT_OK(backend.RunPointToPoint(MakeSend(out, (rank + 1) % 3)));
      TANDEM_ASSERT_OK(backend.RunPointToPoint(RecvOf(&in, (rank + 2) % 3)));
      EXPECT_EQ(in, std::vector<float>(out.size(), static_cast<float>((rank + 2) % 3)));
    });
  }
}

TEST(ShmPointToPointTest, ManyMessagesReturnTheirCredit) {
  // Far more bytes than the credit, in small and large messages, received in another order.
  constexpr size_t kSizes[] = {1, 300'000, 40, 1'000'000};
  RunRanks(ShmBackendFactory(), 3, [&](Backend& backend, int rank) {
    for (int round = 0; round < 10; ++round) {
      std::vector<std::vector<float>> values;
      for (const size_t count : kSizes) values.push_back(Numbers(count, static_cast<float>(round)));
      if (rank > 0) {
        Pending sends[4];
        for (uint32_t tag = 0; tag < 4; ++tag) sends[tag].Start(backend, MakeSend(values[tag], 0, tag));
        for (Pending& send : sends) TANDEM_ASSERT_OK(send.Wait());
        continue;
      }
      for (uint32_t tag = 4; tag-- > 0;) {
        for (const int source : {1, 2}) {
          std::vector<float> got(kSizes[tag]);
          TANDEM_ASSERT_OK(backend.RunPointToPoint(RecvOf(&got, source, tag)));
          EXPECT_EQ(got, values[tag]);
        }
      }
    }
  });
}

TEST(ShmPointToPointFailureTest, AnAnnouncedMessageEndsWithItsGroup) {
  const size_t large = kMostUnexpectedBytes / sizeof(float) + 1;
  std::barrier<> all_have_left(2);  // a rank still in the group's barrier would be ended there
  RunRanks(ShmBackendFactory(), 2, [&](Backend& backend, int rank) {
    std::vector<float> values(large);
    Pending send;
    if (rank == 0) send.Start(backend, MakeSend(values, 1));
    TANDEM_EXPECT_OK(backend.Run(MakeBarrier(0)));
    all_have_left.arrive_and_wait();
    if (rank == 1) backend.Abort(absl::AbortedError("enough"));
    if (rank == 0) {
      EXPECT_THAT(send.Wait(), StatusIs(absl::StatusCode::kAborted, HasSubstr("enough")));
    }
  });
}

// An abort that comes between two looks of the thread that moves asynchronous transfers must not be missed.
TEST(ShmPointToPointFailureTest, AnAbortAtAnyMomentEndsEveryTransfer) {
  for (int round = 0; round < 500 && !HasFailure(); ++round) {
    std::barrier<> both(2);
    RunRanks(ShmBackendFactory(), 2, [&](Backend& backend, int rank) {
      std::vector<float> values(1);
      Pending recv;
      both.arrive_and_wait();
      if (rank == 0) {
        recv.Start(backend, RecvOf(&values, 1));
        EXPECT_THAT(recv.Wait(), StatusIs(absl::StatusCode::kAborted));
      } else {
        for (int i = 0; i < 2000 * (round % 100); ++i) std::atomic_signal_fence(std::memory_order_seq_cst);
        backend.Abort(absl::AbortedError("enough"));
      }
      both.arrive_and_wait();
    });
  }
}

TEST(ShmPointToPointTest, SendsToOneselfArrive) {
  for (const int world : {1, 2}) {
    RunRanks(ShmBackendFactory(), world, [&](Backend& backend, int rank) {
      std::vector<float> early(2), late(2);
      Pending recv;
      recv.Start(backend, RecvOf(&early, rank, 1));
      TANDEM_ASSERT_OK(backend.RunPointToPoint(MakeSend({1, 2}, rank, 1)));
      TANDEM_ASSERT_OK(recv.Wait());
      TANDEM_ASSERT_OK(backend.RunPointToPoint(MakeSend({3, 4}, rank, 2)));
      TANDEM_ASSERT_OK(backend.RunPointToPoint(RecvOf(&late, kAnySource, 2)));
      EXPECT_EQ(early, (std::vector<float>{1, 2}));
      EXPECT_EQ(late, (std::vector<float>{3, 4}));
    });
  }
}

TEST(ShmPointToPointTest, AMessageOfAnotherSizeOrDtypeIsRefusedAndDropped) {
  for (const bool early : {false, true}) {
    RunRanks(ShmBackendFactory(), 2, [&](Backend& backend, int rank) {
      if (rank == 0) {
        if (!early) {
          TANDEM_ASSERT_OK(backend.Run(MakeBarrier(0)));
        }
        TANDEM_ASSERT_OK(backend.RunPointToPoint(MakeSend(Numbers(12, 0), 1, 3)));
        const auto ten = Numbers(10, 0);
        Operation integers = MakeSend(ten, 1, 3);
        integers.dtype = DType::kI32;
        TANDEM_ASSERT_OK(backend.RunPointToPoint(integers));
        TANDEM_ASSERT_OK(backend.RunPointToPoint(MakeSend(Numbers(10, 5), 1, 3)));
        if (early) {
          TANDEM_ASSERT_OK(backend.Run(MakeBarrier(0)));
        }
        return;
      }
      std::vector<float> values(10);
      Pending longer, other, right;
      if (early) {
        TANDEM_ASSERT_OK(backend.Run(MakeBarrier(0)));
      }
      longer.Start(backend, RecvOf(&values, 0, 3));
      if (!early) {
        TANDEM_ASSERT_OK(backend.Run(MakeBarrier(0)));
      }
      EXPECT_THAT(longer.Wait(), StatusIs(absl::StatusCode::kInvalidArgument,
                                          AllOf(HasSubstr("(f32 x 10 from rank 0, tag 3)"),
                                                HasSubstr("rank 0 sent f32 x 12"))));
      other.Start(backend, RecvOf(&values, 0, 3));
      EXPECT_THAT(other.Wait(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("sent i32 x 10")));
      right.Start(backend, RecvOf(&values, 0, 3));
      TANDEM_ASSERT_OK(right.Wait());
      EXPECT_EQ(values, Numbers(10, 5));
    });
  }
}

TEST(ShmPointToPointTest, SeveralThreadsSendAndReceiveAtOnce) {
  constexpr int kThreads = 4;
  RunRanks(ShmBackendFactory(), 2, [&](Backend& backend, int rank) {
    std::vector<std::thread> threads;
    for (uint32_t tag = 0; tag < kThreads; ++tag) {
      threads.emplace_back([&, tag] {
        for (size_t i = 0; i < 60; ++i) {
          const std::vector<float> values = Numbers(1 + i * i * 11, static_cast<float>(tag));
          std::vector<float> got(values.size());
          if ((rank + tag) % 2 == 0) {
            TANDEM_ASSERT_OK(backend.RunPointToPoint(MakeSend(values, 1 - rank, tag)));
          } else {
            TANDEM_ASSERT_OK(backend.RunPointToPoint(RecvOf(&got, 1 - rank, tag)));
            EXPECT_EQ(got, values);
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

TEST(ShmPointToPointFailureTest, AMessageThatDoesNotComeTimesOut) {
  for (const bool async : {false, true}) {
    RunRanks(ShmBackendFactory(), 2, [&](Backend& backend, int rank) {
      if (rank == 0) {
        std::vector<float> values(4);
        const Operation recv = RecvOf(&values, 1, 9, absl::Milliseconds(200));
        Pending pending;
        if (async) pending.Start(backend, recv);
        EXPECT_THAT(
            async ? pending.Wait() : backend.RunPointToPoint(recv),
            StatusIs(absl::StatusCode::kDeadlineExceeded,
                     AllOf(HasSubstr("(f32 x 4 from rank 1, tag 9)"), HasSubstr("rank 1 did not send it"))));
      } else {
        EXPECT_THAT(backend.Run(MakeBarrier(0)), StatusIs(absl::StatusCode::kDeadlineExceeded));
      }
    });
  }
}

TEST(ShmPointToPointFailureTest, WhatWasSentBeforeLeavingArrivesAndNothingAfter) {
  RunRanks(ShmBackendFactory(), 2, [&](Backend& backend, int rank) {
    const std::vector<float> message = Numbers(1'500'001, 3);  // more than the ring holds
    if (rank == 0) {
      Pending* const sent = new Pending;  // ends with the group, or before
      backend.StartPointToPoint(MakeSend(message, 1), [sent](absl::StatusOr<int> result) {
        TANDEM_EXPECT_OK(result);
        delete sent;
      });
      // The buffer is the backend's until then: leaving waits for it.
      std::vector<float> token(1);
      TANDEM_ASSERT_OK(backend.RunPointToPoint(RecvOf(&token, 1, 1)));
      return;
    }
    std::vector<float> values(message.size());
    TANDEM_ASSERT_OK(backend.RunPointToPoint(RecvOf(&values, 0)));
    EXPECT_EQ(values, message);
    TANDEM_ASSERT_OK(backend.RunPointToPoint(MakeSend({1}, 0, 1)));
    EXPECT_THAT(backend.RunPointToPoint(RecvOf(&values, 0)),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank 0 has left the group")));
  });
}

TEST(ShmPointToPointFailureTest, AnAbortEndsWhatIsUnderWay) {
  std::barrier<> all_have_left(2);  // a rank still in the group's barrier would be ended there
  RunRanks(ShmBackendFactory(), 2, [&](Backend& backend, int rank) {
    std::vector<float> values(4);
    Pending recv;
    recv.Start(backend, RecvOf(&values, 1 - rank));
    TANDEM_EXPECT_OK(backend.Run(MakeBarrier(0)));
    all_have_left.arrive_and_wait();
    if (rank == 0) backend.Abort(absl::AbortedError("enough"));
    EXPECT_THAT(recv.Wait(), StatusIs(absl::StatusCode::kAborted, HasSubstr("enough")));
  });
}

}  // namespace
}  // namespace tandem::collectives
