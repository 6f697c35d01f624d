// SPDX-License-Identifier: Apache-2.0
#include "rpc/epoch_gate.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/base/optimization.h"
#include "absl/strings/str_cat.h"

namespace tandem::rpc {
namespace {

constexpr size_t kMostTokens = 16;

std::string NameOf(const Caller& caller) { return caller.member.empty() ? "a process" : caller.member; }

}  // namespace

bool SameSecret(absl::string_view a, absl::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned char difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

absl::Status TokenMissing(const Caller& caller, absl::string_view server, absl::string_view method,
                          Right right) {
  return absl::PermissionDeniedError(absl::StrCat(
      method, " needs the right to ", RightName(right), ", and ", NameOf(caller), " presents ",
      caller.token.empty() ? "no token of the job" : "another token than that of the job", " to ", server,
      ": `tandem run` gives its processes the token of the job; start another "
      "process with TANDEM_JOB_TOKEN set to it: the content of the file job_token in the log "
      "directory of `tandem run`, or the value with which the job's other processes were started"));
}

void EpochGate::Enter(int64_t epoch) {
  int64_t now = epoch_.load(std::memory_order_relaxed);
  while (now < epoch && !epoch_.compare_exchange_weak(now, epoch, std::memory_order_acq_rel)) {
  }
}

absl::Status EpochGate::Admit(const Caller& caller) {
  if (caller.epoch == 0) return absl::OkStatus();
  if (ABSL_PREDICT_FALSE(caller.epoch < 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat(NameOf(server_),
                     " does not understand to which epoch the caller says that it belongs: does it run "
                     "another release of the program?"));
  }
  if (!server_.run_id.empty() && !caller.run_id.empty() && server_.run_id != caller.run_id) {
    return absl::FailedPreconditionError(absl::StrCat(NameOf(caller), " belongs to the job '", caller.run_id,
                                                      "'; ", NameOf(server_), " at this address to the job '",
                                                      server_.run_id, "'"));
  }
  int64_t now = epoch();
  if (ABSL_PREDICT_TRUE(caller.epoch == now)) return absl::OkStatus();
  if (kind_ == Kind::kOutlivesRounds && caller.epoch > now) {
    Enter(caller.epoch);
    now = epoch();  // another caller may have presented a newer epoch
  }
  if (now == 0 || caller.epoch == now) return absl::OkStatus();
  if (caller.epoch < now) {
    return absl::FailedPreconditionError(
        absl::StrCat(NameOf(caller), " belongs to epoch ", caller.epoch, "; the job is at epoch ", now,
                     ", says ", NameOf(server_),
                     ": its other processes have gone on without this one, or it was stopped for too long"));
  }
  return absl::UnavailableError(absl::StrCat(NameOf(caller), " belongs to epoch ", caller.epoch, "; ",
                                             NameOf(server_), " at this address is still at epoch ", now,
                                             ": it has not heard of the new round yet, or was left behind"));
}

void EpochGate::AcceptToken(const std::string& token) {
  if (server_.token.empty() || token.empty() || token == server_.token) return;
  absl::MutexLock lock(&mutex_);
  if (std::find(later_tokens_.begin(), later_tokens_.end(), token) != later_tokens_.end()) return;
  if (later_tokens_.size() >= kMostTokens) later_tokens_.erase(later_tokens_.begin());
  later_tokens_.push_back(token);
}

absl::Status EpochGate::Authorize(const Caller& caller, absl::string_view method, Right right) const {
  if (server_.token.empty() || SameSecret(caller.token, server_.token)) return absl::OkStatus();
  {
    absl::ReaderMutexLock lock(&mutex_);
    for (const std::string& token : later_tokens_) {
      if (SameSecret(caller.token, token)) return absl::OkStatus();
    }
  }
  return TokenMissing(caller, NameOf(server_), method, right);
}

Service Gated(Service service, std::shared_ptr<EpochGate> gate) {
  for (Method& method : service.methods) {
    if (NeedsToken(method.right)) {
      method.handler = [gate, right = method.right, name = absl::StrCat(service.name, "/", method.name),
                        handler = std::move(method.handler)](std::shared_ptr<ServerCall> call) {
        if (absl::Status refused = gate->Authorize(call->caller(), name, right);
            ABSL_PREDICT_FALSE(!refused.ok())) {
          return call->Finish(std::move(refused));
        }
        handler(std::move(call));
      };
    }
    method.handler = [gate, handler = std::move(method.handler)](std::shared_ptr<ServerCall> call) {
      if (absl::Status refused = gate->Admit(call->caller()); ABSL_PREDICT_FALSE(!refused.ok())) {
        return call->Finish(std::move(refused));
      }
      handler(std::move(call));
    };
  }
  return service;
}

}  // namespace tandem::rpc
