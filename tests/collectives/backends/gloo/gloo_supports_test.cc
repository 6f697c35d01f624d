// SPDX-License-Identifier: Apache-2.0
// Calls that Gloo cannot carry out. tests/collectives/backends/network_failure_test.cc has the failures that
// all backends over a network have in common.

#include <vector>

#include "collectives/backends/gloo/gloo_backend.h"
#include "tests/collectives/backends/backend_fixture.h"

namespace tandem::collectives {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(GlooSupportsTest, WhatGlooLacksIsRefusedWithTheBackendThatHasIt) {
  RunRanks(GlooBackendFactory(), 2, [](Backend& backend, int) {
    Operation operation;
    operation.kind = OpKind::kReduceScatter;
    operation.dtype = DType::kF32;
    EXPECT_THAT(backend.Supports(operation),
                StatusIs(absl::StatusCode::kUnimplemented,
                         AllOf(HasSubstr("backend gloo, reduce_scatter"), HasSubstr("backend tcp"))));
    EXPECT_TRUE(absl::IsUnimplemented(backend.Run(operation)));
    TANDEM_EXPECT_OK(backend.Run(MakeBarrier(0)));  // the group remains usable
  });
}

TEST(GlooSupportsTest, RanksOfSeveralAddressesNeedATrustedNetwork) {
  cluster::MemoryStore store;
  BackendOptions options = OptionsOf(&store, 0, {"a", "b"});
  options.peers[1].address = "127.0.0.2";
  EXPECT_THAT(GlooBackendFactory().make(options).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("rank 1"), HasSubstr("--trusted-network"))));
}

TEST(GlooSupportsTest, ATagThatTheBackendKeepsForItselfIsRefused) {
  RunRanks(GlooBackendFactory(), 2, [](Backend& backend, int rank) {
    std::vector<float> values(4);
    EXPECT_THAT(backend.RunPointToPoint(MakeSend(values, 1 - rank, 0xffffffff)).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("keeps this tag for itself")));
    TANDEM_EXPECT_OK(backend.Run(MakeBarrier(0)));
  });
}

}  // namespace
}  // namespace tandem::collectives
