// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_CLI_COMMANDS_PUSHING_PROCESS_H_
#define TANDEM_TESTS_CLI_COMMANDS_PUSHING_PROCESS_H_

// A worker in a process of its own, which pushes until it is killed. A file that it shares with the test
// keeps what it has begun and what was acknowledged.

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ps/client/client.h"
#include "tests/cli/commands/shard_copies.h"
#include "tests/testing/processes/self_process.h"
#include "tests/testing/temp_dir.h"

namespace tandem::cli {

// Not thread-safe.
class PushingProcess {
 public:
  struct Options {
    uint32_t worker = 0;
    uint32_t workers = 0;
    uint32_t servers = 0;
    uint32_t dim = 0;
    size_t mode = 0;  // of AllModes
  };
  explicit PushingProcess(const Options& options);
  ~PushingProcess();

  // Starts the process, with the steps that follow those it has begun, and waits until a push of it is
  // acknowledged. Returns false after kTestTimeout or if it has ended.
  bool Start(const ShardAddresses& addresses);
  // Kills it. Returns false if it had ended by itself.
  bool Kill();
  pid_t pid() const { return process_ == nullptr ? -1 : process_->pid(); }

  // Pushes of all lives.
  uint64_t begun() const;
  uint64_t acknowledged() const;
  // Compares the rows of the servers with what it has begun: an acknowledged push counts once on each server,
  // another one once or never. Returns the number of pushes on each server. The process must have been
  // killed, and no push of it may arrive any more: `client` has taken a push epoch of its rank.
  absl::StatusOr<std::vector<uint64_t>> PushesOnServers(ps::Client& client) const;

 private:
  const Options options_;
  testing::TempDir directory_;
  int progress_[2] = {-1, -1};  // a pipe, in which each life writes a byte at its first acknowledgement
  uint8_t* ledger_ = nullptr;
  std::unique_ptr<testing::SelfProcess> process_;
};

}  // namespace tandem::cli

#endif  // TANDEM_TESTS_CLI_COMMANDS_PUSHING_PROCESS_H_
