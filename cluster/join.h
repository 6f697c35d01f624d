// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLUSTER_JOIN_H_
#define TANDEM_CLUSTER_JOIN_H_

// How processes reach the store of a job, which another process serves or etcd has, and join the job.

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "rpc/caller.h"
#include "rpc/channel.h"

namespace tandem::cluster {

struct JoinOptions {
  std::string member;  // "worker/0"
  // The life that the process has already, if the store has lost its memory; 0: none.
  int64_t life = 0;
  absl::Duration timeout = absl::Seconds(30);
};

// Makes this process a member of the job whose store is at the other end of `channel`. Returns its life
// (rpc::Caller::life). Blocks at most options.timeout: until the store has answered, and while another
// process has the member's name and may have ended. A process of this machine that has ended is replaced at
// once. Errors:
//
//   - AlreadyExists if another process has the name, is alive or may be, and says which
//   - PermissionDenied, with the ids of both keys, if the store has another key
//   - Unimplemented, which names the address, if a gRPC server that is no store is there
//   - those of rpc::Channel
absl::StatusOr<int64_t> JoinStore(rpc::Channel& channel, const JoinOptions& options);

// Tells the store that the calling process does not need the name `member` any more. Blocks for at most
// `timeout`. Errors: Unavailable if the store does not respond; others are those of rpc::Channel.
absl::Status EndLife(rpc::Channel& channel, absl::string_view member, absl::Duration timeout);

// Returns a channel to the store at `address`, "host:port", a unix socket or "etcd://..."
// (etcd/etcd_channel.h), for the process `caller`, which presents the key of this process
// (rpc::ProcessCredential) unless it has a token. Returns at once and connects lazily. Errors: those of
// rpc::ConnectGrpc, ConnectEtcd and rpc::ProcessCredential.
absl::StatusOr<std::unique_ptr<rpc::Channel>> ConnectStore(const std::string& address,
                                                           rpc::Caller caller = {});
// Returns such a channel for a process that only looks: it presents no token, and changes nothing.
absl::StatusOr<std::unique_ptr<rpc::Channel>> ObserveStore(const std::string& address);
// InvalidArgument unless `address` has one of these forms.
absl::Status CheckStoreAddress(const std::string& address);

}  // namespace tandem::cluster

#endif  // TANDEM_CLUSTER_JOIN_H_
