// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_TESTING_TEST_KEY_H_
#define TANDEM_TESTS_TESTING_TEST_KEY_H_

#include <utility>

#include "rpc/caller.h"
#include "rpc/security/job_key.h"

namespace tandem::testing {

// Returns `caller` with the key of the test program, which is also that of the processes that it starts
// (tandem_test() sets TANDEM_KEY).
inline rpc::Caller WithTestKey(rpc::Caller caller = {}) {
  return rpc::JobKey::Load().value().Identify(std::move(caller));
}

}  // namespace tandem::testing

#endif  // TANDEM_TESTS_TESTING_TEST_KEY_H_
