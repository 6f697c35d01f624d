// SPDX-License-Identifier: Apache-2.0
#include "tests/collectives/conformance/suite/conformance_tests.h"

namespace tandem::collectives {
namespace {

// Two hosts with alternating ranks; three hosts of different sizes.
INSTANTIATE_TEST_SUITE_P(TwoHosts, ConformanceTest,
                         OnWorlds({.backend = "shm+tcp",
                                   .host = [](int rank) { return rank % 2 == 0 ? "even" : "odd"; }},
                                  {2, 3, 4}),
                         WorldName);
INSTANTIATE_TEST_SUITE_P(ThreeHosts, ConformanceTest,
                         ::testing::Values(ConformanceCase{
                             .backend = "auto",
                             .world_size = 7,
                             .host = [](int rank) { return rank < 4   ? "a"
                                                           : rank < 6 ? "b"
                                                                      : "c"; }}),
                         WorldName);

}  // namespace
}  // namespace tandem::collectives
