#ifndef TANDEM_RPC_CALLER_H_
#define TANDEM_RPC_CALLER_H_

// Who calls: the job, its epoch and the member, which a channel says of its process to the servers it
// connects to. What they make of it: epoch_gate.h.

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tandem::rpc {

// A plain value.
struct Caller {
  std::string run_id;  // of the job (TANDEM_RUN_ID); "": not told
  // Of the job (TANDEM_EPOCH), from 1; 0: the process belongs to no job, as a tool that looks at one. Below
  // 0: what came is not understood.
  int64_t epoch = 0;
  std::string member;  // "worker/3"

  // What travels; "" of a caller that has nothing to say. At most kMaxCallerBytes if CheckCaller is OK.
  std::string ToBytes() const;
  // Of anything that may come; bytes that ToBytes does not make have an epoch below 0.
  static Caller FromBytes(absl::string_view bytes);
};

inline constexpr size_t kMaxCallerBytes = 640;
inline constexpr char kCallerHeader[] = "tandem-caller-bin";  // in gRPC's metadata

// InvalidArgument: an epoch below 0, or a name of more than 256 bytes.
absl::Status CheckCaller(const Caller& caller);

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_CALLER_H_
