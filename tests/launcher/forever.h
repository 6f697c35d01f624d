#ifndef TANDEM_TESTS_LAUNCHER_FOREVER_H_
#define TANDEM_TESTS_LAUNCHER_FOREVER_H_

namespace tandem::cli {

inline constexpr char kForever[] = "tail -f /dev/null";  // a process that stays until it is stopped

}  // namespace tandem::cli

#endif  // TANDEM_TESTS_LAUNCHER_FOREVER_H_
