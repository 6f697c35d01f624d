// SPDX-License-Identifier: Apache-2.0
#include "collectives/backends/mpi/mpi_backend.h"

#include <cstdlib>

#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace tandem::collectives {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

BackendOptions TwoRanks() {
  BackendOptions options;
  options.world_size = 2;
  options.peers.resize(2);
  return options;
}

TEST(MpiBackendTest, AProcessThatMpirunHasNotStartedIsToldHow) {
  setenv("TANDEM_PLUGIN_PATH", TANDEM_PLUGIN_BUILD_DIR, 1);
  EXPECT_THAT(MpiBackendFactory().viable(TwoRanks()),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("not started by mpirun"), HasSubstr("mpirun -n 2"))));
}

}  // namespace
}  // namespace tandem::collectives
