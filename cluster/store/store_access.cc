// SPDX-License-Identifier: Apache-2.0
#include "cluster/store/store_access.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "cluster/store/job_token.h"
#include "rpc/epoch_gate.h"

namespace tandem::cluster {
namespace {

constexpr char kServer[] = "the job's store";
constexpr size_t kMostTokens = 16;

absl::Status NotYet() {
  return absl::UnavailableError("the job's store is not open yet: its launcher has not entered the round");
}

}  // namespace

StoreAccess::StoreAccess(Options options)
    : token_follows_(options.token_follows), token_(std::move(options.token)), secret_(!token_.empty()) {}

void StoreAccess::SetToken(const std::string& token) {
  absl::MutexLock lock(&mutex_);
  token_follows_ = false;
  token_ = token;
  secret_ = !token.empty();
  also_.clear();
}

bool StoreAccess::Accepts(const std::string& token) const {
  if (token_.empty() || token.empty()) return false;
  if (rpc::SameSecret(token, token_)) return true;
  return absl::c_any_of(also_, [&token](const std::string& other) { return rpc::SameSecret(token, other); });
}

void StoreAccess::AlsoAccept(const std::string& token) {
  if (also_.size() >= kMostTokens) also_.erase(also_.begin());
  also_.push_back(token);
}

absl::StatusOr<std::string> StoreAccess::Join(const rpc::Caller& caller, bool member, bool secret) {
  const std::string& presented = caller.token;
  absl::MutexLock lock(&mutex_);
  if (token_follows_) return NotYet();
  secret = secret && !presented.empty();
  if (token_.empty()) {
    const bool taken = CheckJobToken(presented).ok() && (member || !secret);
    token_ = taken ? presented : NewJobToken();
    secret_ = taken && secret;
  } else if (!Accepts(presented)) {
    if (secret_) {
      return rpc::TokenMissing(caller, kServer, "tandem.v1.Store/Join", rpc::Right::kMember);
    }
    if (member && secret) {
      if (members_) {
        return absl::FailedPreconditionError(absl::StrCat(
            "this process has ", kJobTokenVariable,
            ", and the job's other members were started without it: start all of them with the same "
            "value, or all without"));
      }
      if (absl::Status valid = CheckJobToken(presented); !valid.ok()) return valid;
      AlsoAccept(token_);  // clients have it
      token_ = presented;
      secret_ = true;
    } else if (!presented.empty() && !secret) {
      // It gets the present token below, and goes on to use this one in its open connections.
      AlsoAccept(presented);
    }
  }
  members_ = members_ || member;
  return secret_ && !rpc::SameSecret(presented, token_) ? presented : token_;
}

absl::Status StoreAccess::Authorize(const rpc::Caller& caller, absl::string_view method,
                                    rpc::Right right) const {
  absl::ReaderMutexLock lock(&mutex_);
  if (token_follows_) return NotYet();
  if (Accepts(caller.token)) return absl::OkStatus();
  return rpc::TokenMissing(caller, kServer, method, right);
}

}  // namespace tandem::cluster
