// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLUSTER_STORE_JOIN_H_
#define TANDEM_CLUSTER_STORE_JOIN_H_

// How processes join a store that another process serves: as members of its job, or as clients which only
// use it.

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
  std::string member;  // "worker/0"; "": the process only uses the store
  // The life that the process has already, if the store has lost its memory; 0: none.
  int64_t life = 0;
  // The channel's caller presents a token from the process's environment: the store gives it to nobody.
  bool secret_token = false;
  absl::Duration timeout = absl::Seconds(30);
};
struct Joined {
  std::string token;  // for rpc::Caller::token
  int64_t life = 0;   // for rpc::Caller::life
};

// Joins the store at the other end of `channel`. The channel's caller has the token that this process
// presents, if it has one. Blocks until the store has answered, and while another process has the member's
// name and may have ended, but at most options.timeout. A process of this machine that has ended is replaced
// at once. Errors:
//
//   - AlreadyExists if another process has the name, is alive or may be, and says which
//   - PermissionDenied and FailedPrecondition about the token, as cluster/store/store_access.h describes them
//   - Unimplemented, which names the address, if a gRPC server that is no store is there
//   - those of rpc::Channel
absl::StatusOr<Joined> JoinStore(rpc::Channel& channel, const JoinOptions& options);

// Tells the store that the calling process does not need the name `member` any more. Blocks for at most
// `timeout`. Errors: Unavailable if the store does not respond; others are those of rpc::Channel.
absl::Status EndLife(rpc::Channel& channel, absl::string_view member, absl::Duration timeout);

// Returns a channel to the store at "host:port" for the process `caller`. Returns at once and connects
// lazily. When the store refuses a call because the process does not present its token, the channel joins
// (a member that has a life joins with that life), gets the token and repeats the call; so it works before
// the process has a token, and after the store has lost its memory. `secret_token` as in JoinOptions.
//
// A caller without a token presents TANDEM_JOB_TOKEN if that is set. Errors: InvalidArgument as for
// rpc::ConnectGrpc, or about TANDEM_JOB_TOKEN.
absl::StatusOr<std::unique_ptr<rpc::Channel>> ConnectStore(const std::string& address, rpc::Caller caller,
                                                           bool secret_token);
// The same for a process whose token, if it has one, is from its environment.
absl::StatusOr<std::unique_ptr<rpc::Channel>> ConnectStore(const std::string& address,
                                                           rpc::Caller caller = {});

}  // namespace tandem::cluster

#endif  // TANDEM_CLUSTER_STORE_JOIN_H_
