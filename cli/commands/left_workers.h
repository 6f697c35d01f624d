// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLI_COMMANDS_LEFT_WORKERS_H_
#define TANDEM_CLI_COMMANDS_LEFT_WORKERS_H_

#include <memory>
#include <thread>

#include "base/timed_wait.h"
#include "ps/server/parameter_server.h"
#include "rpc/channel.h"

namespace tandem::cli {

// Tells a parameter server which workers have left its job, so that no pull waits for them until its
// deadline. Owns a thread, which asks the job's store once a second, and only while calls of the server have
// waited for a second, or after a worker has left.
class LeftWorkers {
 public:
  // `server` must outlive this object. `store` is the channel to the job's store.
  LeftWorkers(ps::ParameterServer* server, std::shared_ptr<rpc::Channel> store);
  // Blocks for a question to the store that is under way, at most five seconds.
  ~LeftWorkers();

 private:
  void Run();

  ps::ParameterServer* const server_;
  const std::shared_ptr<rpc::Channel> store_;
  TimedNotification stop_;
  std::thread thread_;
};

}  // namespace tandem::cli

#endif  // TANDEM_CLI_COMMANDS_LEFT_WORKERS_H_
