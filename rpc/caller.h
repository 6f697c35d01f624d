// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_CALLER_H_
#define TANDEM_RPC_CALLER_H_

// Identifies the calling process by its job, epoch and member name, and by the job's token. A channel sends
// this to each server that it connects to; epoch_gate.h decides with it whether the calls are served.

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tandem::rpc {

// The identity of a calling process. A plain value.
struct Caller {
  // The job's id (TANDEM_RUN_ID), or "" if unknown.
  std::string run_id;
  // The job's epoch (TANDEM_EPOCH), counted from 1. 0: the process belongs to no job, such as a tool that
  // inspects one. Below 0: the received bytes could not be parsed.
  int64_t epoch = 0;
  std::string member;  // the process's name in the job, "worker/3"
  // The job's token (TANDEM_JOB_TOKEN), which shows that the process is a member of the job. "": it does not
  // present one, so it may only observe and read. It is a secret: no message and no log has it.
  std::string token = {};
  // Which process of the name `member` this is in the job, counted from 1 by the job's store, which refuses
  // the changes of a process that another one has replaced. 0: the process has not joined the job.
  int64_t life = 0;

  // Returns the encoding that is sent; "" for an empty Caller. At most kMaxCallerBytes if CheckCaller returns
  // OK.
  std::string ToBytes() const;
  // Parses bytes from any source. Bytes that ToBytes cannot have produced give an epoch below 0.
  static Caller FromBytes(absl::string_view bytes);
};

// Largest encoding that FromBytes accepts.
inline constexpr size_t kMaxCallerBytes = 640;
// The key of the encoding in gRPC's metadata.
inline constexpr char kCallerHeader[] = "tandem-caller-bin";

// Longest token.
inline constexpr size_t kMaxTokenBytes = 64;

// Returns InvalidArgument if the epoch is below 0, a name has more than 256 bytes, or the token has more than
// kMaxTokenBytes.
absl::Status CheckCaller(const Caller& caller);

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_CALLER_H_
