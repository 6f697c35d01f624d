#ifndef TANDEM_BENCH_HARNESS_RPC_FLAGS_H_
#define TANDEM_BENCH_HARNESS_RPC_FLAGS_H_

// The flags of `tandem bench rpc`, the cases that they ask for, and how results are printed. Also
// bench/peers/plain_grpc_rpc is built on this, so it knows nothing of ours.

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
  // Comma lists.
  std::string transports = "tcp,unix,shm,direct";
  std::string kinds = "empty,pooled,echo";
  std::string bytes = "1048576";  // of echoes
  std::string in_flight = "1,8,64,512";
  double time_ms = 500;
  bool json = false;
};

// A plain value.
struct RpcCase {
  std::string transport;  // "tcp", "unix", "shm"; "direct": within the process
  std::string
      kind;  // "empty": run on the RPC thread; "pooled": on a thread of the worker's pool; "echo": a tensor
  size_t bytes = 0;  // of the tensor, each way
  int in_flight = 1;
};

struct RpcResult {
  double seconds = 0;                // from the first call to the last answer
  std::vector<double> latencies_us;  // of each call
};

// `flags` outlives the parsing.
void DeclareRpcFlags(CLI::App* command, RpcFlags* flags);
// Of a program that has no others. The exit code if it is to end: after --help, or when it has said what is
// wrong.
std::optional<int> ParseRpcFlags(const char* description, int argc, char** argv, RpcFlags* flags);
// What they ask for, in the order in which it is measured: by transport, kind, bytes and calls in flight.
// InvalidArgument names the flag.
absl::StatusOr<std::vector<RpcCase>> RpcCasesOf(const RpcFlags& flags);

void PrintRpcHeader();
void PrintRpcResult(const RpcCase& rpc_case, RpcResult result, bool json);

}  // namespace tandem::bench

#endif  // TANDEM_BENCH_HARNESS_RPC_FLAGS_H_
