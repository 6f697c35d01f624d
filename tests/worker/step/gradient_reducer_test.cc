// SPDX-License-Identifier: Apache-2.0
#include "worker/step/gradient_reducer.h"

#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/collectives/conformance/run_ranks.h"
#include "tests/testing/status_matchers.h"

namespace tandem::worker {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::ElementsAre;

// The calls that one rank's backend received.
struct Seen {
  std::vector<size_t> sizes;
  std::vector<std::thread::id> threads;
  absl::Status error;
};

// Doubles its input, as if the other rank had the same values.
class TwinBackend : public collectives::Backend {
 public:
  explicit TwinBackend(std::shared_ptr<Seen> seen) : seen_(std::move(seen)) {}
  absl::string_view name() const override { return "twin"; }
  absl::Status Supports(const collectives::Operation&) const override { return absl::OkStatus(); }
  absl::Status Run(const collectives::Operation& operation) override {
    EXPECT_EQ(operation.kind, collectives::OpKind::kAllReduce);
    seen_->sizes.push_back(operation.out.count);
    seen_->threads.push_back(std::this_thread::get_id());
    if (!seen_->error.ok()) return seen_->error;
    for (size_t i = 0; i < operation.out.count; ++i) static_cast<float*>(operation.out.data)[i] *= 2;
    return absl::OkStatus();
  }
  void StartPointToPoint(const collectives::Operation&, Done done) override {
    done(absl::UnimplementedError(""));
  }
  void Abort(const absl::Status&) override {}

 private:
  const std::shared_ptr<Seen> seen_;
};

// Runs `body` on two ranks.
void RunTwoRanks(const absl::Status& error,
                 const std::function<void(collectives::ProcessGroup&, const Seen&)>& body) {
  std::vector<std::shared_ptr<Seen>> seen = {std::make_shared<Seen>(), std::make_shared<Seen>()};
  for (const auto& one : seen) one->error = error;
  collectives::ProcessGroupOptions options;
  options.backend = "twin";
  collectives::BackendFactory factory;
  factory.name = "twin";
  factory.make =
      [&](const collectives::BackendOptions& o) -> absl::StatusOr<std::unique_ptr<collectives::Backend>> {
    return std::make_unique<TwinBackend>(seen[o.rank]);
  };
  options.extra_backends = {factory};
  collectives::RunRanks(2, options,
                        [&](collectives::ProcessGroup& group) { body(group, *seen[group.rank()]); });
}

TEST(GradientReducerTest, ReducesEveryRangeOnceInBucketsOfNeighbours) {
  RunTwoRanks(absl::OkStatus(), [](collectives::ProcessGroup& group, const Seen& seen) {
    GradientReducer reducer(&group, 4 * sizeof(float));
    std::vector<float> gradients(12, 1.0f);
    reducer.Begin(absl::MakeSpan(gradients));
    reducer.Ready(10, 12);  // from the last layer to the first
    reducer.Ready(7, 10);   // completes a bucket of 5
    reducer.Ready(5, 7);
    reducer.Ready(0, 1);  // not adjacent to [5, 7): both are sent separately
    reducer.Ready(1, 5);
    TANDEM_ASSERT_OK(reducer.Finish());
    EXPECT_THAT(gradients, ::testing::Each(2.0f));
    EXPECT_THAT(seen.sizes, ElementsAre(5, 2, 5));
    const std::thread::id mine = std::this_thread::get_id();
    EXPECT_THAT(seen.threads, ElementsAre(::testing::Ne(mine), ::testing::Ne(mine), mine))
        << "buckets are reduced beside the backward pass, but for the last, which has nothing to lie beside";
    // The next step starts with empty buckets.
    reducer.Begin(absl::MakeSpan(gradients));
    reducer.Ready(0, 12);
    TANDEM_ASSERT_OK(reducer.Finish());
    EXPECT_THAT(gradients, ::testing::Each(4.0f));
  });
}

TEST(GradientReducerTest, AFullBucketGoesWhileTheRestIsComputed) {
  RunTwoRanks(absl::OkStatus(), [](collectives::ProcessGroup& group, const Seen& seen) {
    GradientReducer reducer(&group, 2 * sizeof(float));
    std::vector<float> gradients(6, 1.0f);
    reducer.Begin(absl::MakeSpan(gradients));
    reducer.Ready(4, 6);
    // A later operation on the same queue: when it is done, so is the bucket.
    float marker[] = {1.0f};
    TANDEM_ASSERT_OK(group.AllReduce(absl::MakeSpan(marker), {.op = collectives::ReduceOp::kSum}).Wait());
    EXPECT_THAT(gradients, ElementsAre(1, 1, 1, 1, 2, 2));
    reducer.Ready(0, 4);
    TANDEM_ASSERT_OK(reducer.Finish());
    EXPECT_THAT(seen.sizes, ElementsAre(2, 1, 4));
  });
}

TEST(GradientReducerTest, AFailureIsReturnedFromThenOn) {
  RunTwoRanks(absl::UnavailableError("rank 1 is gone"),
              [](collectives::ProcessGroup& group, const Seen& seen) {
                GradientReducer reducer(&group, 1);
                std::vector<float> gradients(4, 1.0f);
                for (int step = 0; step < 2; ++step) {
                  reducer.Begin(absl::MakeSpan(gradients));
                  reducer.Ready(0, 4);
                  EXPECT_THAT(reducer.Finish(), StatusIs(absl::StatusCode::kUnavailable, "rank 1 is gone"));
                }
                EXPECT_THAT(seen.sizes, ElementsAre(4));  // a failed group is not called again
              });
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
