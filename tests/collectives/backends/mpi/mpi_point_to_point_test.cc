// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "tests/collectives/backends/mpi/mpi_ranks.h"
#include "tests/testing/status_matchers.h"

namespace tandem::collectives {
namespace {

using ::tandem::testing::IsOk;
using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

class MpiPointToPointTest : public MpiRanks {
 protected:
  void SetUp() override {
    if (world_size() < 2) GTEST_SKIP() << "needs two ranks";
    TANDEM_ASSERT_OK_AND_ASSIGN(backend_, Make("g"));
  }
  Operation Of(OpKind kind, int peer, uint32_t tag, std::vector<int32_t>* values) {
    Operation o;
    o.kind = kind;
    o.dtype = DType::kI32;
    o.root = peer;
    o.tag = tag;
    o.timeout = kTimeout;
    if (kind == OpKind::kSend) o.in = {values->data(), values->size()};
    if (kind == OpKind::kRecv) o.out = {values->data(), values->size()};
    return o;
  }
  absl::StatusOr<int> Send(int peer, uint32_t tag, std::vector<int32_t> values) {
    return backend_->RunPointToPoint(Of(OpKind::kSend, peer, tag, &values));
  }
  absl::StatusOr<int> Recv(int peer, uint32_t tag, std::vector<int32_t>* values) {
    return backend_->RunPointToPoint(Of(OpKind::kRecv, peer, tag, values));
  }
  std::unique_ptr<Backend> backend_;
};

TEST_F(MpiPointToPointTest, TagsChooseAndMessagesOfOneTagKeepTheirOrder) {
  if (rank() == 0) {
    for (int i = 0; i < 10; ++i) EXPECT_THAT(Send(1, 7, {i, -i}), IsOk());
    EXPECT_THAT(Send(1, 8, {100}), IsOk());
  } else if (rank() == 1) {
    std::vector<int32_t> one(1), two(2);
    EXPECT_THAT(Recv(0, 8, &one), IsOk());
    EXPECT_EQ(one[0], 100);
    for (int i = 0; i < 10; ++i) {
      EXPECT_THAT(Recv(0, 7, &two), IsOk());
      EXPECT_EQ(two, (std::vector<int32_t>{i, -i}));
    }
  }
  AwaitAllRanks("end");
}

TEST_F(MpiPointToPointTest, MessagesOfOneTagGoToReceivesInTheirOrderHoweverManyWait) {
  // Most messages arrive while the receives are probed one after the other.
  constexpr int kMessages = 400;
  std::vector<std::vector<int32_t>> values(kMessages, std::vector<int32_t>(1));
  std::vector<absl::Notification> over(kMessages);
  AwaitAllRanks("begin");
  if (rank() > 1) return AwaitAllRanks("end");
  for (int i = 0; i < kMessages; ++i) {
    if (rank() == 0) values[i][0] = i;
    // Every third receive accepts any sender.
    const int peer = rank() == 0 ? 1 : i % 3 == 0 ? kAnySource : 0;
    const OpKind kind = rank() == 0 ? OpKind::kSend : OpKind::kRecv;
    backend_->StartPointToPoint(Of(kind, peer, 7, &values[i]), [&over, i](absl::StatusOr<int> result) {
      EXPECT_THAT(result, IsOk());
      over[i].Notify();
    });
  }
  for (int i = 0; i < kMessages; ++i) {
    over[i].WaitForNotification();
    EXPECT_EQ(values[i][0], i);
  }
  AwaitAllRanks("end");
}

TEST_F(MpiPointToPointTest, LongMessagesCrossEachOtherAndEmptyOnesArrive) {
  const int next = (rank() + 1) % world_size(), previous = (rank() + world_size() - 1) % world_size();
  for (const size_t n : {size_t{0}, size_t{5000}, size_t{1500000}}) {
    std::vector<int32_t> to(n, rank()), from(n, -1);
    absl::Notification sent, received;
    backend_->StartPointToPoint(Of(OpKind::kSend, next, 1, &to), [&](absl::StatusOr<int> result) {
      EXPECT_THAT(result, IsOk());
      sent.Notify();
    });
    backend_->StartPointToPoint(Of(OpKind::kRecv, previous, 1, &from), [&](absl::StatusOr<int> result) {
      TANDEM_EXPECT_OK(result);
      if (result.ok()) {
        EXPECT_EQ(*result, previous);
      }
      received.Notify();
    });
    sent.WaitForNotification();
    received.WaitForNotification();
    EXPECT_EQ(from, std::vector<int32_t>(n, previous));
  }
  AwaitAllRanks("end");
}

TEST_F(MpiPointToPointTest, AnySourceTellsWhoSent) {
  if (rank() != 0) {
    EXPECT_THAT(Send(0, 3, {rank()}), IsOk());
  } else {
    std::vector<bool> seen(world_size());
    for (int i = 1; i < world_size(); ++i) {
      std::vector<int32_t> value(1);
      TANDEM_ASSERT_OK_AND_ASSIGN(const int source, Recv(kAnySource, 3, &value));
      EXPECT_EQ(source, value[0]);
      EXPECT_FALSE(seen[source]);
      seen[source] = true;
    }
  }
  AwaitAllRanks("end");
}

TEST_F(MpiPointToPointTest, AMessageThatDoesNotFitIsDroppedAndTheNextArrives) {
  if (rank() == 0) {
    EXPECT_THAT(Send(1, 1, std::vector<int32_t>(1000000, 1)), IsOk());
    EXPECT_THAT(Send(1, 1, {5}), IsOk());
  } else if (rank() == 1) {
    std::vector<int32_t> values(3, -1);
    EXPECT_THAT(Recv(0, 1, &values),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("rank 0 sends i32 x 1000000"), HasSubstr("expects i32 x 3"))));
    EXPECT_EQ(values, std::vector<int32_t>(3, -1));
    values.resize(1);
    EXPECT_THAT(Recv(0, 1, &values), IsOk());
    EXPECT_EQ(values[0], 5);
  }
  AwaitAllRanks("end");
}

TEST_F(MpiPointToPointTest, AReceiveEndsAtItsDeadlineAndBreaksTheGroup) {
  if (rank() == 0) {
    std::vector<int32_t> values(3, -1);
    Operation o = Of(OpKind::kRecv, 1, 9, &values);
    o.timeout = absl::Milliseconds(300);
    EXPECT_THAT(backend_->RunPointToPoint(o), StatusIs(absl::StatusCode::kDeadlineExceeded,
                                                       AllOf(HasSubstr("recv"), HasSubstr("nothing came"))));
    EXPECT_FALSE(Send(1, 9, {1}).ok());
  }
  AwaitAllRanks("end");
}

TEST_F(MpiPointToPointTest, AnAbortEndsReceivesHereAndThere) {
  std::vector<int32_t> values(3, -1);
  if (rank() < 2) {
    absl::Notification ended;
    backend_->StartPointToPoint(Of(OpKind::kRecv, 1 - rank(), 9, &values), [&](absl::StatusOr<int> result) {
      EXPECT_THAT(result, StatusIs(absl::StatusCode::kAborted, HasSubstr("enough")));
      ended.Notify();
    });
    if (rank() == 0) backend_->Abort(absl::AbortedError("enough"));
    ended.WaitForNotification();
  }
  AwaitAllRanks("end");
}

}  // namespace
}  // namespace tandem::collectives
