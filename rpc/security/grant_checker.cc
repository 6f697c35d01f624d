// SPDX-License-Identifier: Apache-2.0
#include "rpc/security/grant_checker.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"

namespace tandem::rpc {

GrantHolder::GrantHolder(GrantClaims claims)
    : claims_(std::move(claims)),
      filled_(MonotonicNow()),
      // A quota below one call a second still allows a call when it is full.
      calls_{.per_second = claims_.calls_per_second, .left = std::max(1.0, claims_.calls_per_second)},
      bytes_{.per_second = claims_.bytes_per_second, .left = claims_.bytes_per_second} {}

absl::Duration GrantHolder::Bucket::Until(double least) const {
  return left >= least ? absl::ZeroDuration() : absl::Seconds((least - left) / per_second);
}

void GrantHolder::Refill() {
  const absl::Time now = MonotonicNow();
  const double seconds = absl::ToDoubleSeconds(now - filled_);
  calls_.left = std::min(calls_.left + seconds * calls_.per_second, std::max(1.0, calls_.per_second));
  bytes_.left = std::min(bytes_.left + seconds * bytes_.per_second, bytes_.per_second);
  filled_ = now;
}

absl::Status GrantHolder::TakeCall(size_t bytes) {
  if (calls_.per_second == 0 && bytes_.per_second == 0) return absl::OkStatus();
  absl::MutexLock lock(&mutex_);
  Refill();
  const absl::Duration wait = std::max(calls_.per_second == 0 ? absl::ZeroDuration() : calls_.Until(1),
                                       bytes_.per_second == 0 ? absl::ZeroDuration() : bytes_.Until(0));
  if (wait > absl::ZeroDuration()) {
    return absl::ResourceExhaustedError(
        absl::StrCat(claims_.ToString(), ", has used up its quota of ", claims_.calls_per_second,
                     " calls and ", claims_.bytes_per_second,
                     " bytes a second (0: no limit) here; there is some in ", absl::FormatDuration(wait)));
  }
  calls_.left -= 1;
  bytes_.left -= static_cast<double>(bytes);
  return absl::OkStatus();
}

void GrantHolder::TakeBytes(size_t bytes) {
  absl::MutexLock lock(&mutex_);
  bytes_.left -= static_cast<double>(bytes);
}

void GrantChecker::SetFetch(Fetch fetch) {
  absl::MutexLock lock(&fetch_mutex_);
  fetch_ = std::move(fetch);
}

absl::StatusOr<std::shared_ptr<GrantHolder>> GrantChecker::Find(const Caller& caller) {
  {
    absl::MutexLock lock(&state_->mutex);
    const auto found = state_->by_token.find(caller.token);
    if (found != state_->by_token.end()) return found->second;
  }
  TANDEM_ASSIGN_OR_RETURN(GrantClaims claims, CheckGrant(caller, grant_key_));
  absl::MutexLock lock(&state_->mutex);
  std::shared_ptr<GrantHolder>& holder = state_->by_id[claims.id];
  if (holder == nullptr) holder = std::make_shared<GrantHolder>(std::move(claims));
  if (state_->by_token.size() >= kMaxTokens) state_->by_token.clear();
  state_->by_token[caller.token] = holder;
  return holder;
}

absl::StatusOr<std::shared_ptr<GrantHolder>> GrantChecker::Check(const Caller& caller) {
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<GrantHolder> holder, Find(caller));
  const GrantClaims& claims = holder->claims();
  if (absl::Now() >= claims.expires) {
    return absl::PermissionDeniedError(
        absl::StrCat(claims.ToString(), ", has expired on ",
                     absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", claims.expires, absl::UTCTimeZone()),
                     " by this server's clock; ask for another one"));
  }
  {
    absl::MutexLock lock(&state_->mutex);
    if (state_->revoked.contains(claims.id)) {
      return absl::PermissionDeniedError(absl::StrCat(claims.ToString(), ", is revoked"));
    }
  }
  absl::MutexLock fetch_lock(&fetch_mutex_);
  if (fetch_ == nullptr) return holder;
  bool ask = false;
  {
    absl::MutexLock lock(&state_->mutex);
    const absl::Time now = MonotonicNow();
    ask = !state_->asking && now - state_->asked >= kFetchEvery;
    if (ask) {
      state_->asking = true;
      state_->asked = now;
    }
  }
  if (ask) {
    fetch_([state = state_](RevokedIds ids) {
      absl::MutexLock lock(&state->mutex);
      state->asking = false;
      // While the store does not answer, what is known stays.
      if (!ids.ok()) {
        if (state->known) state->answered = MonotonicNow();
        return;
      }
      state->known = true;
      state->answered = MonotonicNow();
      // A store that has lost its memory takes no revocation back.
      state->revoked.insert(ids->begin(), ids->end());
    });
  }
  absl::MutexLock lock(&state_->mutex);
  if (!state_->known || MonotonicNow() - state_->answered > 2 * kFetchEvery) {
    return absl::UnavailableError(
        "this server asks the job's store which grants are revoked, and has no answer yet");
  }
  if (state_->revoked.contains(claims.id)) {
    return absl::PermissionDeniedError(absl::StrCat(claims.ToString(), ", is revoked"));
  }
  return holder;
}

}  // namespace tandem::rpc
