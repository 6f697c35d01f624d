#include "worker/trainer/gradient_reducer.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace tandem::worker {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::ElementsAre;

// Doubles what it is given, as if the other rank had the same, and keeps a record of sizes.
class TwinGroup : public collectives::ProcessGroup {
 public:
  int rank() const override { return 0; }
  int world_size() const override { return 2; }
  absl::Status AllReduce(absl::Span<float> values, collectives::ReduceOp) override {
    sizes.push_back(values.size());
    if (!error.ok()) return error;
    for (float& value : values) value *= 2;
    return absl::OkStatus();
  }
  absl::Status AllReduce(absl::Span<double>, collectives::ReduceOp) override {
    return absl::UnimplementedError("");
  }
  absl::Status AllReduce(absl::Span<int64_t>, collectives::ReduceOp) override {
    return absl::UnimplementedError("");
  }
  absl::Status Broadcast(void*, size_t, int) override { return absl::UnimplementedError(""); }
  absl::Status AllGather(const void*, size_t, void*) override { return absl::UnimplementedError(""); }
  absl::StatusOr<std::vector<std::string>> AllGatherBytes(absl::string_view) override {
    return absl::UnimplementedError("");
  }
  absl::Status Barrier() override { return absl::UnimplementedError(""); }
  absl::Status Barrier(absl::Duration) override { return absl::UnimplementedError(""); }

  std::vector<size_t> sizes;
  absl::Status error;
};

TEST(GradientReducerTest, ReducesEveryRangeOnceInBucketsOfNeighbours) {
  TwinGroup group;
  GradientReducer reducer(&group, 4);
  std::vector<float> gradients(12, 1.0f);
  reducer.Begin(absl::MakeSpan(gradients));
  reducer.Ready(10, 12);  // from the last layer to the first
  reducer.Ready(7, 10);   // makes a bucket of 5
  reducer.Ready(5, 7);
  reducer.Ready(0, 1);  // no neighbour of [5, 7): both travel by themselves
  reducer.Ready(1, 5);
  TANDEM_ASSERT_OK(reducer.Finish());
  EXPECT_THAT(gradients, ::testing::Each(2.0f));
  EXPECT_THAT(group.sizes, ElementsAre(5, 2, 5));
  // The next step starts afresh.
  reducer.Begin(absl::MakeSpan(gradients));
  reducer.Ready(0, 12);
  TANDEM_ASSERT_OK(reducer.Finish());
  EXPECT_THAT(gradients, ::testing::Each(4.0f));
}

TEST(GradientReducerTest, AFailureIsReturnedFromThenOn) {
  TwinGroup group;
  group.error = absl::UnavailableError("rank 1 is gone");
  GradientReducer reducer(&group, 1);
  std::vector<float> gradients(4, 1.0f);
  for (int step = 0; step < 2; ++step) {
    reducer.Begin(absl::MakeSpan(gradients));
    reducer.Ready(0, 4);
    EXPECT_THAT(reducer.Finish(), StatusIs(absl::StatusCode::kUnavailable, "rank 1 is gone"));
  }
  EXPECT_THAT(group.sizes, ElementsAre(4));  // a broken group is not asked again
}

TEST(GradientReducerTest, AloneThereIsNothingToDo) {
  GradientReducer reducer(nullptr, 1);
  std::vector<float> gradients(4, 1.0f);
  reducer.Begin(absl::MakeSpan(gradients));
  reducer.Ready(0, 4);
  TANDEM_ASSERT_OK(reducer.Finish());
  EXPECT_THAT(gradients, ::testing::Each(1.0f));
}

}  // namespace
}  // namespace tandem::worker
