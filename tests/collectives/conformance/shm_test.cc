#include "tests/collectives/conformance/suite/conformance_tests.h"

namespace tandem::collectives {
namespace {

INSTANTIATE_TEST_SUITE_P(Shm, ConformanceTest, OnWorlds({.backend = "shm"}), WorldName);

}  // namespace
}  // namespace tandem::collectives
