// How a process group fails: always on every rank, always by its deadline, always with a name.

#include <array>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "collectives/process_group.h"
#include "tests/collectives/group_fixture.h"
#include "tests/testing/status_matchers.h"

namespace tandem::collectives {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

TEST(ProcessGroupOptionsTest, NonsenseIsRefused) {
  MemoryStore store;
  auto with = [&](auto change) {
    ProcessGroupOptions options;
    change(&options);
    return InitProcessGroup(&store, options).status();
  };
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(with([](auto* o) { o->rank = 1; }), StatusIs(kInvalid, HasSubstr("rank 1 of a world of 1")));
  EXPECT_THAT(with([](auto* o) { o->world_size = 0; }), StatusIs(kInvalid));
  EXPECT_THAT(with([](auto* o) { o->backend = "smoke"; }),
              StatusIs(kInvalid, AllOf(HasSubstr("smoke"), HasSubstr("gloo"))));
  EXPECT_THAT(with([](auto* o) { o->name = ""; }), StatusIs(kInvalid));
  EXPECT_THAT(with([](auto* o) { o->timeout = absl::ZeroDuration(); }), StatusIs(kInvalid));
  EXPECT_THAT(with([](auto* o) {
                o->world_size = 2;
                o->interface_address = "eth99";
              }),
              StatusIs(kInvalid, HasSubstr("eth99")));
}

TEST(ProcessGroupFailureTest, ARankThatNeverComesIsNamedByItsGroup) {
  MemoryStore store;
  ProcessGroupOptions options;
  options.world_size = 2;
  options.name = "dense";
  options.timeout = absl::Milliseconds(100);
  EXPECT_THAT(
      InitProcessGroup(&store, options),
      StatusIs(absl::StatusCode::kDeadlineExceeded, AllOf(HasSubstr("'dense'"), HasSubstr("rank 1 of 2"))));
}

TEST(ProcessGroupFailureTest, TheRankThatIsMissingInAnOperationIsNamedToAll) {
  absl::BlockingCounter failed(2);
  RunRanks(
      3,
      [&](ProcessGroup& group) {
        TANDEM_ASSERT_OK(group.Barrier(absl::Seconds(30)));
        std::vector<float> values(1024, 1.0f);
        const absl::Time start = absl::Now();
        if (group.rank() == 1) failed.Wait();  // comes when the others have given up
        const absl::Status first = group.AllReduce(absl::MakeSpan(values), ReduceOp::kSum);
        EXPECT_THAT(first,
                    StatusIs(absl::StatusCode::kDeadlineExceeded,
                             HasSubstr("all_reduce #1 (sum of f32 x 1024) on group 'default': rank 1 did not "
                                       "arrive within 2s")));
        EXPECT_LT(absl::Now() - start, absl::Seconds(10));
        // Broken from now on, for the same reason.
        EXPECT_EQ(group.Barrier(), first);
        EXPECT_EQ(group.AllGatherBytes("x").status(), first);
        if (group.rank() != 1) failed.DecrementCount();
      },
      absl::Seconds(2));
}

TEST(ProcessGroupFailureTest, ABarrierEndsByItsOwnDeadline) {
  absl::Notification failed;
  RunRanks(2, [&](ProcessGroup& group) {
    if (group.rank() == 1) {
      failed.WaitForNotification();
      EXPECT_THAT(group.Barrier(), StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("rank 1")));
      return;
    }
    const absl::Time start = absl::Now();
    EXPECT_THAT(
        group.Barrier(absl::Milliseconds(100)),
        StatusIs(absl::StatusCode::kDeadlineExceeded, AllOf(HasSubstr("barrier #0"), HasSubstr("100ms"))));
    EXPECT_LT(absl::Now() - start, absl::Seconds(5));
    failed.Notify();
  });
}

// Each rank calls what `call` does for it; all must hear both sides' descriptions.
void ExpectDisagreement(int world, const std::function<absl::Status(ProcessGroup&)>& call,
                        const std::string& one, const std::string& other) {
  RunRanks(world, [&](ProcessGroup& group) {
    const absl::Status status = call(group);
    EXPECT_THAT(status,
                StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr(one), HasSubstr(other))));
    EXPECT_EQ(group.Barrier(), status);
  });
}

TEST(ProcessGroupFailureTest, DifferentSizesAreNamedOnAllRanks) {
  // Small against small, small against large, large against larger.
  const std::array<size_t, 2> kSizes[] = {{10, 11}, {0, 1}, {100, 5 << 20}, {3 << 20, 4 << 20}};
  for (const auto& sizes : kSizes) {
    for (int world : {2, 3}) {
      ExpectDisagreement(
          world,
          [&](ProcessGroup& group) {
            std::vector<float> values(sizes[group.rank() == 1]);
            return group.AllReduce(absl::MakeSpan(values), ReduceOp::kSum);
          },
          absl::StrCat("all_reduce #0 (sum of f32 x ", sizes[0], ")"),
          absl::StrCat("rank 1 calls all_reduce #0 (sum of f32 x ", sizes[1], ")"));
    }
  }
}

TEST(ProcessGroupFailureTest, DifferentOperationsAreNamedOnAllRanks) {
  ExpectDisagreement(
      3,
      [](ProcessGroup& group) {
        std::vector<float> values(1 << 20);
        return group.rank() == 2 ? group.Barrier() : group.AllReduce(absl::MakeSpan(values), ReduceOp::kAvg);
      },
      "rank 2 calls barrier #0", "all_reduce #0 (avg of f32 x 1048576)");
}

TEST(ProcessGroupFailureTest, DifferentTypesRootsAndReductionsAreNamed) {
  ExpectDisagreement(
      2,
      [](ProcessGroup& group) {
        std::vector<double> doubles(8);
        std::vector<int64_t> integers(8);
        return group.rank() == 0 ? group.AllReduce(absl::MakeSpan(doubles), ReduceOp::kSum)
                                 : group.AllReduce(absl::MakeSpan(integers), ReduceOp::kSum);
      },
      "f64 x 8", "i64 x 8");
  ExpectDisagreement(
      2,
      [](ProcessGroup& group) {
        int value = 0;
        return group.Broadcast(&value, sizeof(value), group.rank());
      },
      "4 bytes from rank 0", "4 bytes from rank 1");
  ExpectDisagreement(
      2,
      [](ProcessGroup& group) {
        std::vector<float> values(8);
        return group.AllReduce(absl::MakeSpan(values), group.rank() == 0 ? ReduceOp::kMin : ReduceOp::kMax);
      },
      "min of", "max of");
}

TEST(ProcessGroupFailureTest, ARankThatHasLeftIsNamed) {
  RunRanks(2, [](ProcessGroup& group) {
    if (group.rank() == 1) return;  // and the group goes
    EXPECT_THAT(group.Barrier(),
                StatusIs(absl::StatusCode::kUnavailable,
                         AnyOf(HasSubstr("rank 1 has left the group"), HasSubstr("rank 1 was lost"))));
  });
}

}  // namespace
}  // namespace tandem::collectives
