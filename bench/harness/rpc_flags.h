// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BENCH_HARNESS_RPC_FLAGS_H_
#define TANDEM_BENCH_HARNESS_RPC_FLAGS_H_

// The flags of `tandem bench rpc`, the cases that they select, and the output of results.
// bench/peers/plain_grpc_rpc uses it too, so it does not depend on Tandem's libraries.

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace CLI {
class App;
}

namespace tandem::bench {

struct RpcFlags {
  // Comma-separated lists.
  std::string transports = "tcp,unix,shm,direct";
  std::string kinds = "empty,pooled,echo";
  std::string bytes = "1048576";  // of echoes
  std::string in_flight = "1,8,64,512";
  double time_ms = 500;
  bool json = false;
};

// The parameters of one measurement.
struct RpcCase {
  std::string transport;  // "tcp", "unix", "shm"; "direct": within the process
  // "empty": the function runs on the RPC thread; "pooled": on a thread of the worker's pool; "echo": the
  // call carries a tensor.
  std::string kind;
  size_t bytes = 0;  // size of the tensor, in each direction
  int in_flight = 1;
};

struct RpcResult {
  double seconds = 0;                // from the first call to the last response
  std::vector<double> latencies_us;  // of each call
};

// Declares the flags. `flags` must outlive the parsing.
void DeclareRpcFlags(CLI::App* command, RpcFlags* flags);
// Parses the command line of a program that has no other flags. Returns the exit code if the program must
// end: after --help, or after it has printed an error.
std::optional<int> ParseRpcFlags(const char* description, int argc, char** argv, RpcFlags* flags);
// Returns the cases that the flags select, in the order of measurement: by transport, kind, bytes and calls
// in flight. InvalidArgument names the flag.
absl::StatusOr<std::vector<RpcCase>> RpcCasesOf(const RpcFlags& flags);

void PrintRpcHeader();
void PrintRpcResult(const RpcCase& rpc_case, RpcResult result, bool json);

}  // namespace tandem::bench

#endif  // TANDEM_BENCH_HARNESS_RPC_FLAGS_H_
