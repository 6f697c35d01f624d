// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLUSTER_STORE_STORE_ACCESS_H_
#define TANDEM_CLUSTER_STORE_STORE_ACCESS_H_

// The token of a store, which its members and clients present: who gets it, and who is let in.

#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "rpc/caller.h"
#include "rpc/service.h"

namespace tandem::cluster {

// Thread-safe.
//
// A store whose host has a token (TANDEM_JOB_TOKEN) serves the callers that have it as well and gives it to
// nobody. Otherwise the first caller that joins decides:
//
//   it presents                               the token of the store
//   nothing                                   is a random one, which every caller that joins gets
//   a token that an earlier store gave to it  is that one, which every caller that joins gets
//   a token of its environment, as a member   is that one; nobody gets it
//   a token of its environment, as a client   is a random one, which every caller that joins gets: the store
//                                             may serve several jobs
class StoreAccess {
 public:
  struct Options {
    std::string token;           // of the host's environment; "": it has none
    bool token_follows = false;  // callers are told to try again until SetToken
  };
  explicit StoreAccess(Options options);

  // Sets the token to one that nobody gets, or makes the first caller decide if `token` is "". Later callers
  // must have it.
  void SetToken(const std::string& token);
  // Lets `caller` join, as a member of a job or as a client that only uses the store. `secret`: it has its
  // token from its environment. Returns the token that it must present from now on. Errors:
  //
  //   - PermissionDenied if nobody gets the token and `caller` does not present it
  //   - FailedPrecondition for a member with a secret token if other members have another one
  //   - Unavailable before SetToken if the token follows
  absl::StatusOr<std::string> Join(const rpc::Caller& caller, bool member, bool secret);
  // Returns PermissionDenied, which names `method` and `right`, unless `caller` presents a token of the
  // store. Unavailable before SetToken if the token follows.
  absl::Status Authorize(const rpc::Caller& caller, absl::string_view method, rpc::Right right) const;

 private:
  bool Accepts(const std::string& token) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void AlsoAccept(const std::string& token) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  bool token_follows_ ABSL_GUARDED_BY(mutex_);
  std::string token_ ABSL_GUARDED_BY(mutex_);
  bool secret_ ABSL_GUARDED_BY(mutex_);           // nobody gets token_
  bool members_ ABSL_GUARDED_BY(mutex_) = false;  // a member has joined
  // Tokens that callers have from an earlier store, or from this one before its members had a secret one.
  std::vector<std::string> also_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::cluster

#endif  // TANDEM_CLUSTER_STORE_STORE_ACCESS_H_
