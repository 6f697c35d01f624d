// SPDX-License-Identifier: Apache-2.0
// Errors that a rank can detect alone are refused on that rank, with a message that says what is expected.
// Nothing is sent, and the group is as before.

#include <string>
#include <vector>

#include "collectives/process_group.h"
#include "tests/collectives/conformance/reference_backend.h"
#include "tests/collectives/conformance/run_ranks.h"

namespace tandem::collectives {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

void OnTwoRanks(const std::function<void(ProcessGroup&)>& body) {
  ReferenceWorld world;
  ProcessGroupOptions options;
  options.backend = "reference";
  options.extra_backends = {world.factory()};
  RunRanks(2, options, [&](ProcessGroup& group) {
    body(group);
    // Nothing has been sent: the next operation is the first.
    std::vector<float> one = {1};
    TANDEM_EXPECT_OK(group.AllReduce(absl::MakeSpan(one)).Wait());
    EXPECT_EQ(one[0], 2);
  });
}

// Returns the text of a refusal.
std::string Refused(const Work& work) {
  EXPECT_THAT(work.status(), StatusIs(absl::StatusCode::kInvalidArgument));
  return std::string(work.status().message());
}

TEST(GroupValidationTest, TensorsMustFitEachOther) {
  OnTwoRanks([](ProcessGroup& group) {
    std::vector<float> three(3), four(4), eight(8);
    std::vector<int32_t> integers(4);
    EXPECT_THAT(
        Refused(group.AllReduce(three, absl::MakeSpan(four))),
        AllOf(HasSubstr("all_reduce on group 'default': "), HasSubstr("in has 3 elements, out has 4")));
    EXPECT_THAT(Refused(group.AllReduce(integers, absl::MakeSpan(four))),
                HasSubstr("in is i32 x 4, out is f32 x 4; they must have the same dtype"));
    EXPECT_THAT(Refused(group.AllGather(three, absl::MakeSpan(eight), CallOptions())),
                HasSubstr("out has 8 elements; with 3 in in and 2 ranks it must have 2 x 3"));
    EXPECT_THAT(Refused(group.ReduceScatter(eight, absl::MakeSpan(three))),
                HasSubstr("in has 8 elements; with 3 in out and 2 ranks it must have 2 x 3"));
    EXPECT_THAT(Refused(group.AllToAll(three, absl::MakeSpan(three), CallOptions())),
                HasSubstr("in has 3 elements, which 2 ranks cannot share evenly"));
    EXPECT_THAT(Refused(group.AllReduce(TensorView(nullptr, 5, DType::kF32))),
                HasSubstr("is a null pointer to 5 elements"));
    EXPECT_THAT(Refused(group.AllReduce(TensorView(four.data(), 4, static_cast<DType>(77)))),
                HasSubstr("no known dtype (77)"));
    EXPECT_THAT(Refused(group.AllReduce(TensorView(four.data(), ~size_t{0} / 2, DType::kF32))),
                HasSubstr("more than there is memory"));
    EXPECT_THAT(Refused(group.AllReduce(four, TensorView(four.data(), 4, DType::kF32, Device::Cuda(0)))),
                HasSubstr("they must be on the same device"));
  });
}

TEST(GroupValidationTest, RootsAndPeersMustBeRanks) {
  OnTwoRanks([](ProcessGroup& group) {
    std::vector<float> values(4);
    for (const int root : {-1, 2}) {
      EXPECT_THAT(
          Refused(group.Broadcast(absl::MakeSpan(values), {.root = root})),
          HasSubstr(absl::StrCat("root ", root, " is no rank of a group of 2; ranks go from 0 to 1")));
      EXPECT_THAT(Refused(group.Reduce(absl::MakeSpan(values), {.root = root})), HasSubstr("root"));
      EXPECT_THAT(group.BroadcastBytes("x", {.root = root}), StatusIs(absl::StatusCode::kInvalidArgument));
    }
    EXPECT_THAT(Refused(group.Send(values, 2)), HasSubstr("peer 2 is no other rank of a group of 2"));
    EXPECT_THAT(Refused(group.Send(values, kAnySource)), HasSubstr("peer -1"));
    EXPECT_THAT(Refused(group.Recv(absl::MakeSpan(values), group.rank())), HasSubstr("is this rank itself"));
    // A batch starts all its operations or none.
    const int other = 1 - group.rank();
    const std::vector<Work> works =
        group.BatchIsendIrecv({{PointToPoint::Kind::kRecv, other, absl::MakeSpan(values)},
                               {PointToPoint::Kind::kSend, 7, absl::MakeSpan(values)}});
    ASSERT_EQ(works.size(), 2u);
    EXPECT_THAT(Refused(works[0]), HasSubstr("entry 1 of a batch"));
    EXPECT_THAT(Refused(works[1]), HasSubstr("entry 1 of a batch"));
  });
}

TEST(GroupValidationTest, ListsHaveOneTensorForEachRankAndOnlyTheRootGivesThem) {
  OnTwoRanks([](ProcessGroup& group) {
    std::vector<float> a(2), b(3), c(2);
    std::vector<double> d(2);
    EXPECT_THAT(Refused(group.AllGather(a, std::vector<TensorView>{TensorView(b)}, CallOptions())),
                HasSubstr("outs has 1 tensors; it must have one for each of the 2 ranks"));
    EXPECT_THAT(Refused(group.AllGather(a, {TensorView(c), TensorView(d)}, CallOptions())),
                HasSubstr("outs[1] is f64 on the CPU, but the other side is f32"));
    EXPECT_THAT(Refused(group.AllToAll({ConstTensorView(a), ConstTensorView(a)},
                                       {TensorView(b), TensorView(b)}, CallOptions())),
                HasSubstr("this rank's own of ins has 2 elements"));
    if (group.rank() == 1) {
      EXPECT_THAT(Refused(group.Gather(a, {TensorView(b), TensorView(c)}, {.root = 0})),
                  HasSubstr("only the root's is filled; leave it empty"));
      EXPECT_THAT(
          Refused(group.Scatter({ConstTensorView(b), ConstTensorView(c)}, absl::MakeSpan(a), {.root = 0})),
          HasSubstr("only the root's is sent; leave it empty"));
    }
  });
}

TEST(GroupValidationTest, TensorsMustNotOverlapButInPlace) {
  OnTwoRanks([](ProcessGroup& group) {
    std::vector<float> v(10), w(4);
    const TensorView all(v);
    EXPECT_THAT(Refused(group.AllReduce(all.Sub(0, 4), all.Sub(1, 4))),
                HasSubstr("in and out overlap otherwise than in place"));
    const size_t wrong = group.rank() == 0 ? 4 : 0;  // where the other's part goes
    EXPECT_THAT(Refused(group.AllGather(all.Sub(wrong, 4), all.Sub(0, 8), CallOptions())),
                HasSubstr("overlap"));
    EXPECT_THAT(Refused(group.AllToAll(all.Sub(0, 4), all.Sub(0, 4), CallOptions())),
                HasSubstr("in and out overlap"));
    EXPECT_THAT(Refused(group.AllGather(TensorView(w), {all.Sub(0, 4), all.Sub(3, 4)}, CallOptions())),
                HasSubstr("outs[0] and outs[1] overlap"));
    EXPECT_THAT(Refused(group.AllReduceCoalesced({all.Sub(0, 2), all.Sub(5, 2), all.Sub(6, 2)})),
                HasSubstr("tensors[1] and tensors[2] overlap"));
  });
}

TEST(GroupValidationTest, AReductionWithoutMeaningForTheDtypeIsUnimplemented) {
  OnTwoRanks([](ProcessGroup& group) {
    std::vector<float> floats(4);
    std::vector<int32_t> integers(4);
    EXPECT_THAT(group.AllReduce(absl::MakeSpan(floats), {.op = ReduceOp::kBitAnd}).status(),
                StatusIs(absl::StatusCode::kUnimplemented, AllOf(HasSubstr("band"), HasSubstr("f32"))));
    EXPECT_THAT(group.AllReduce(absl::MakeSpan(integers), {.op = ReduceOp::kPremulSum}).status(),
                StatusIs(absl::StatusCode::kUnimplemented, AllOf(HasSubstr("premul_sum"), HasSubstr("i32"))));
    EXPECT_THAT(Refused(group.Barrier({.timeout = -absl::Seconds(1)})), HasSubstr("must be positive"));
    EXPECT_THAT(group.AllReduce(TensorView(floats.data(), 4, DType::kF32, Device::Cuda(0))).status(),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("cpu:auto,cuda:nccl")));
  });
}

TEST(GroupValidationTest, SubgroupsAreMadeOfRanks) {
  OnTwoRanks([](ProcessGroup& group) {
    const auto kInvalid = absl::StatusCode::kInvalidArgument;
    EXPECT_THAT(group.NewGroup({}), StatusIs(kInvalid, HasSubstr("it has no ranks")));
    EXPECT_THAT(group.NewGroup({0, 2}), StatusIs(kInvalid, HasSubstr("rank 2 is no rank of a group of 2")));
    EXPECT_THAT(group.NewGroup({1, 1}), StatusIs(kInvalid, HasSubstr("rank 1 is given twice")));
    EXPECT_THAT(group.NewSubgroups(0), StatusIs(kInvalid, HasSubstr("groups of 0")));
  });
}

}  // namespace
}  // namespace tandem::collectives
