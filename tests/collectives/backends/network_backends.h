// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_COLLECTIVES_BACKENDS_NETWORK_BACKENDS_H_
#define TANDEM_TESTS_COLLECTIVES_BACKENDS_NETWORK_BACKENDS_H_

// The backends that connect ranks over a network: tcp, and gloo where the library was found. Both keep the
// same promises about failures, so one suite tests both.

#include <string>
#include <vector>

#include "collectives/backend.h"
#include "collectives/backends/gloo/gloo_backend.h"
#include "collectives/backends/tcp/tcp_backend.h"
#include "gtest/gtest.h"

namespace tandem::collectives {

inline std::vector<std::string> NetworkBackends() {
#ifdef TANDEM_FOUND_GLOO
  return {"tcp", "gloo"};
#else
  return {"tcp"};
#endif
}

inline BackendFactory NetworkBackendFactory(const std::string& name) {
#ifdef TANDEM_FOUND_GLOO
  if (name == "gloo") return GlooBackendFactory();
#endif
  return TcpBackendFactory();
}

// The parameter is the backend's name.
class NetworkBackendTest : public ::testing::TestWithParam<std::string> {
 protected:
  BackendFactory Factory() const { return NetworkBackendFactory(GetParam()); }
};

#define TANDEM_TEST_ON_NETWORK_BACKENDS(Suite)                                      \
  INSTANTIATE_TEST_SUITE_P(Backends, Suite, ::testing::ValuesIn(NetworkBackends()), \
                           [](const auto& test) { return test.param; })

}  // namespace tandem::collectives

#endif  // TANDEM_TESTS_COLLECTIVES_BACKENDS_NETWORK_BACKENDS_H_
