// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_CALLER_H_
#define TANDEM_RPC_CALLER_H_

// Identifies the calling process by its job, epoch and member name, and by the token of the job's key. A
// channel sends this to each server that it connects to; security/epoch_gate.h decides with it whether the
// calls are served.

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
  // Shows that the process has the job's key (JobKey::Token) or a grant (security/grant.h). "": a channel
  // presents the credential of its process (ChannelOptions::key). It is a secret: no message and no log has
  // it.
  std::string token = {};
  // Tells the keys of processes apart in messages (JobKey::Id); "": not given.
  std::string key_id = {};
  // Which process of the name `member` this is in the job, counted from 1 by the job's store, which refuses
  // the changes of a process that another one has replaced. 0: the process has not joined the job.
  int64_t life = 0;
  // The number of the job's shards if the caller is a parameter server: the shard of "ps/4" is 4 mod
  // `shards`. 0: not known.
  uint32_t shards = 0;

  // Returns the encoding that is sent; "" for an empty Caller. At most kMaxCallerBytes if CheckCaller returns
  // OK.
  std::string ToBytes() const;
  // Parses bytes from any source. Bytes that ToBytes cannot have produced give an epoch below 0.
  static Caller FromBytes(absl::string_view bytes);
};

// Largest encoding that FromBytes accepts.
inline constexpr size_t kMaxCallerBytes = 1600;
// The key of the encoding in gRPC's metadata.
inline constexpr char kCallerHeader[] = "tandem-caller-bin";

// Longest token and longest id of a key.
inline constexpr size_t kMaxTokenBytes = 1024;
inline constexpr size_t kMaxKeyIdBytes = 16;

// Returns InvalidArgument if the epoch is below 0, a name has more than 256 bytes, or the token or the id of
// the key are longer than they may be.
absl::Status CheckCaller(const Caller& caller);

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_CALLER_H_
