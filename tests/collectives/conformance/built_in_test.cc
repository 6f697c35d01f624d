// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "collectives/connect/backend_choice.h"
#include "tests/collectives/conformance/suite/conformance_tests.h"

namespace tandem::collectives {
namespace {

// Returns the options of a backend, with the operations that it lacks. All others must work.
SuiteOptions OptionsOf(absl::string_view backend) {
  SuiteOptions options;
  // Gloo has reduce_scatter only for buffers that are bound to a connection, with 32-bit counts.
  if (backend == "gloo") options.lacks = {OpKind::kReduceScatter};
  return options;
}

// Every built-in backend for CPU tensors whose ranks may be threads, on one host.
std::vector<ConformanceCase> BuiltInCases() {
  std::vector<ConformanceCase> cases;
  for (const BackendFactory& factory : BuiltInBackends()) {
    if (factory.device != Device::Kind::kCpu || !factory.ranks_may_be_threads) continue;
    for (const int world_size : {1, 2, 3, 4, 7}) {
      cases.push_back({.backend = factory.name, .world_size = world_size, .suite = OptionsOf(factory.name)});
    }
  }
  return cases;
}

std::string CaseName(const ::testing::TestParamInfo<ConformanceCase>& info) {
  std::string name;
  for (const char c : info.param.backend) {
    if (absl::ascii_isalnum(c)) name += c;
  }
  return absl::StrCat(name, "Of", info.param.world_size);
}

// Each rank has an address of its own, as ranks of different hosts have.
INSTANTIATE_TEST_SUITE_P(Encrypted, ConformanceTest,
                         OnWorlds({.backend = "tcp",
                                   .address = [](int rank) { return absl::StrCat("127.0.0.", 1 + rank); }},
                                  {2, 3, 4}),
                         WorldName);
INSTANTIATE_TEST_SUITE_P(BuiltIn, ConformanceTest, ::testing::ValuesIn(BuiltInCases()), CaseName);

}  // namespace
}  // namespace tandem::collectives
