#include "tests/collectives/conformance/suite/conformance_tests.h"

namespace tandem::collectives {
namespace {

INSTANTIATE_TEST_SUITE_P(Gloo, ConformanceTest, OnWorlds({.backend = "gloo"}), WorldName);

}  // namespace
}  // namespace tandem::collectives
