#ifndef TANDEM_RPC_DIAGNOSTICS_CLOCK_NAME_H_
#define TANDEM_RPC_DIAGNOSTICS_CLOCK_NAME_H_

#include <string>

namespace tandem::rpc {

// Equal for processes whose steady clocks are one and the same: those of one kernel, containers included,
// unless they have time namespaces of their own.
std::string ClockName();

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_DIAGNOSTICS_CLOCK_NAME_H_
