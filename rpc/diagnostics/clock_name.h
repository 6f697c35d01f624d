// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_DIAGNOSTICS_CLOCK_NAME_H_
#define TANDEM_RPC_DIAGNOSTICS_CLOCK_NAME_H_

#include <string>

namespace tandem::rpc {

// Returns a name of this process's steady clock. Processes with the same name share a clock: those of one
// kernel, containers included, unless they have their own time namespaces.
std::string ClockName();

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_DIAGNOSTICS_CLOCK_NAME_H_
