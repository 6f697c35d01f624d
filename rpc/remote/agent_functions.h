#ifndef TANDEM_RPC_REMOTE_AGENT_FUNCTIONS_H_
#define TANDEM_RPC_REMOTE_AGENT_FUNCTIONS_H_

// What workers ask of each other about themselves.

#include <cstdint>
#include <vector>

#include "rpc/remote/call/function.h"
#include "rpc/remote/references.h"

namespace tandem::rpc::remote {

struct AgentState {
  bool finishing = false;  // it wants to shut down
  int64_t active = 0;      // calls from and to it that are not over
  int64_t started = 0;     // that ever were
  TANDEM_REMOTE_FIELDS(AgentState, finishing, active, started)
};

inline constexpr Function<AgentState()> kAgentState{"tandem.agent.state", {.idempotent = true}};
// Answers when it wants to shut down and has no call under way.
inline constexpr Function<AgentState()> kAwaitEnd{"tandem.agent.await_end", {.idempotent = true}};
// The values that it owns.
inline constexpr Function<std::vector<DebugRef>()> kDebugRefs{"tandem.agent.debug_refs",
                                                              {.idempotent = true}};

}  // namespace tandem::rpc::remote

#endif  // TANDEM_RPC_REMOTE_AGENT_FUNCTIONS_H_
