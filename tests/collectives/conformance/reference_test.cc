// SPDX-License-Identifier: Apache-2.0
#include "tests/collectives/conformance/reference_backend.h"
#include "tests/collectives/conformance/suite/conformance_tests.h"

namespace tandem::collectives {
namespace {

std::vector<BackendFactory> Reference() { return {ReferenceWorld().factory()}; }

INSTANTIATE_TEST_SUITE_P(Reference, ConformanceTest, OnWorlds({.backend = "reference", .extra = Reference}),
                         WorldName);
// A world of one connects nothing.
INSTANTIATE_TEST_SUITE_P(Solo, ConformanceTest, ::testing::Values(ConformanceCase{.backend = "auto"}),
                         WorldName);

}  // namespace
}  // namespace tandem::collectives
