// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_REMOTE_CALL_RUNTIME_H_
#define TANDEM_RPC_REMOTE_CALL_RUNTIME_H_

#include "rpc/remote/call/function_executor.h"
#include "rpc/transport/timer_queue.h"

namespace tandem::rpc::remote {

class StreamTable;

// The threads, timers and streams that serve the functions of one worker. Must outlive everything that is
// scheduled on it.
class Runtime {
 public:
  virtual ~Runtime() = default;
  virtual FunctionExecutor& executor() = 0;
  virtual TimerQueue& timers() = 0;
  virtual StreamTable& streams() = 0;
};

}  // namespace tandem::rpc::remote

#endif  // TANDEM_RPC_REMOTE_CALL_RUNTIME_H_
