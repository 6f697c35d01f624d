// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_SECURITY_GRANT_CHECKER_H_
#define TANDEM_RPC_SECURITY_GRANT_CHECKER_H_

// Checks the grants that callers of one server present, and counts what their holders use.

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "rpc/caller.h"
#include "rpc/security/grant.h"

namespace tandem::rpc {

// A grant in use at one server: its claims, and what is left of its quotas. Thread-safe.
class GrantHolder {
 public:
  explicit GrantHolder(GrantClaims claims);

  const GrantClaims& claims() const { return claims_; }
  // Counts a call, and `bytes` of a request or of a response. A quota is what a second allows, and it fills
  // up steadily. ResourceExhausted, and nothing is counted, if the quota of calls is used up or that of bytes
  // is overdrawn; the message says when it will do again.
  absl::Status TakeCall(size_t bytes);
  // Counts bytes that were sent already. They may overdraw the quota.
  void TakeBytes(size_t bytes);

 private:
  struct Bucket {
    double per_second = 0;
    double left = 0;
    // Returns how long it takes until there is `least` in it.
    absl::Duration Until(double least) const;
  };
  void Refill() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const GrantClaims claims_;
  absl::Mutex mutex_;
  absl::Time filled_ ABSL_GUARDED_BY(mutex_);
  Bucket calls_ ABSL_GUARDED_BY(mutex_);
  Bucket bytes_ ABSL_GUARDED_BY(mutex_);
};

class GrantChecker {
 public:
  // Asks for the ids of all revoked grants, without blocking, and calls `done` once, on any thread.
  using RevokedIds = absl::StatusOr<std::vector<std::string>>;
  using Fetch = std::function<void(std::function<void(RevokedIds)> done)>;
  // A revocation holds at the latest when twice this has passed, if the job's store answers.
  static constexpr absl::Duration kFetchEvery = absl::Seconds(2);

  // `grant_key`: GrantKey of the server's key. Empty: no grant is good.
  explicit GrantChecker(std::string grant_key) : grant_key_(std::move(grant_key)) {}

  // Sets where the revoked grants are known; nullptr: nowhere, none is revoked. They are asked for while
  // callers with grants call, at most every kFetchEvery. The caller of this function sees to it that `fetch`
  // is not called after its parts are gone: it sets another one before.
  void SetFetch(Fetch fetch);

  // Returns the holder of the grant that `caller` presents (PresentsGrant). PermissionDenied if the grant is
  // not one of this job, has expired or is revoked. Unavailable, which clients retry, while the answer to
  // whether it is revoked is missing or older than twice kFetchEvery. Does not block.
  absl::StatusOr<std::shared_ptr<GrantHolder>> Check(const Caller& caller);

 private:
  static constexpr size_t kMaxTokens = 1024;  // more are forgotten, and checked again

  struct State {
    absl::Mutex mutex;
    // One grant may be presented by different tokens, whose encodings differ.
    absl::flat_hash_map<std::string, std::shared_ptr<GrantHolder>> by_token ABSL_GUARDED_BY(mutex);
    absl::flat_hash_map<std::string, std::shared_ptr<GrantHolder>> by_id ABSL_GUARDED_BY(mutex);
    absl::flat_hash_set<std::string> revoked ABSL_GUARDED_BY(mutex);
    bool known ABSL_GUARDED_BY(mutex) = false;  // `revoked` has been asked for with success
    bool asking ABSL_GUARDED_BY(mutex) = false;
    absl::Time asked ABSL_GUARDED_BY(mutex) = absl::InfinitePast();
    absl::Time answered ABSL_GUARDED_BY(mutex) = absl::InfinitePast();
  };
  absl::StatusOr<std::shared_ptr<GrantHolder>> Find(const Caller& caller);

  const std::string grant_key_;
  const std::shared_ptr<State> state_ = std::make_shared<State>();  // shared with answers under way
  absl::Mutex fetch_mutex_;  // held while `fetch_` runs; acquired before State::mutex
  Fetch fetch_ ABSL_GUARDED_BY(fetch_mutex_);
};

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_SECURITY_GRANT_CHECKER_H_
