// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_LAUNCHER_FOREVER_H_
#define TANDEM_TESTS_LAUNCHER_FOREVER_H_

namespace tandem::launcher {

inline constexpr char kForever[] = "tail -f /dev/null";  // a process that stays until it is stopped

}  // namespace tandem::launcher

#endif  // TANDEM_TESTS_LAUNCHER_FOREVER_H_
