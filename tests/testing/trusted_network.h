// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_TESTING_TRUSTED_NETWORK_H_
#define TANDEM_TESTS_TESTING_TRUSTED_NETWORK_H_

#include <cstdlib>

#include "rpc/security/transport_security.h"

namespace tandem::testing {

// While it exists, servers and channels over TCP are made without TLS. For fakes of programs that speak plain
// gRPC, and for one thread.
class TrustedNetworkScope {
 public:
  TrustedNetworkScope() { setenv(rpc::kTrustedNetworkVariable, "1", 1); }
  ~TrustedNetworkScope() { unsetenv(rpc::kTrustedNetworkVariable); }
  TrustedNetworkScope(const TrustedNetworkScope&) = delete;
  TrustedNetworkScope& operator=(const TrustedNetworkScope&) = delete;
};

}  // namespace tandem::testing

#endif  // TANDEM_TESTS_TESTING_TRUSTED_NETWORK_H_
