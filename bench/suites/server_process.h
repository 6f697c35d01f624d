// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BENCH_SUITES_SERVER_PROCESS_H_
#define TANDEM_BENCH_SUITES_SERVER_PROCESS_H_

#include <sys/types.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "rpc/channel.h"

namespace tandem::bench {

// `tandem SERVICE serve` in a process that ends with this object, or with this process.
class ServerProcess {
 public:
  // `service` is "replay" or "weights". Blocks until the server has printed its address. Internal: it did not
  // start.
  static absl::StatusOr<std::unique_ptr<ServerProcess>> Start(const char* service);
  ~ServerProcess();
  // Connects to it, over shared memory or TCP, with the key of this process, which is also the server's.
  // Errors: those of rpc::Connect.
  absl::StatusOr<std::unique_ptr<rpc::Channel>> Connect(bool shared_memory) const;

 private:
  ServerProcess() = default;

  pid_t pid_ = -1;
  std::string address_;
};

}  // namespace tandem::bench

#endif  // TANDEM_BENCH_SUITES_SERVER_PROCESS_H_
