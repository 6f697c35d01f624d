// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_TESTING_JOB_TOKEN_H_
#define TANDEM_TESTS_TESTING_JOB_TOKEN_H_

namespace tandem::testing {

// The value of TANDEM_JOB_TOKEN for the processes of a test, and rpc::Caller::token of its own channels.
inline constexpr char kTestJobToken[] = "the-token-of-a-test";

}  // namespace tandem::testing

#endif  // TANDEM_TESTS_TESTING_JOB_TOKEN_H_
