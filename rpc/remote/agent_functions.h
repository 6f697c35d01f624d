// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_REMOTE_AGENT_FUNCTIONS_H_
#define TANDEM_RPC_REMOTE_AGENT_FUNCTIONS_H_

// The functions with which RPC agents ask each other about their state.

#include <cstdint>
#include <vector>

#include "rpc/remote/call/function.h"
#include "rpc/remote/references.h"

namespace tandem::rpc::remote {

// The state of a worker's agent.
struct AgentState {
  bool finishing = false;  // it wants to shut down
  int64_t active = 0;      // calls from and to it that are under way
  int64_t started = 0;     // calls from and to it since the start
  TANDEM_REMOTE_FIELDS(AgentState, finishing, active, started)
};

inline constexpr Function<AgentState()> kAgentState{"tandem.agent.state", {.idempotent = true}};
// Responds when the worker wants to shut down and has no calls under way.
inline constexpr Function<AgentState()> kAwaitShutdown{"tandem.agent.await_end", {.idempotent = true}};
// Returns the values that the worker owns.
inline constexpr Function<std::vector<DebugRef>()> kDebugRefs{"tandem.agent.debug_refs",
                                                              {.idempotent = true}};

}  // namespace tandem::rpc::remote

#endif  // TANDEM_RPC_REMOTE_AGENT_FUNCTIONS_H_
