// SPDX-License-Identifier: Apache-2.0
#include "rpc/security/epoch_gate.h"

#include <string>
#include <utility>

#include "absl/base/optimization.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/crypto/crypto.h"
#include "base/status.h"
#include "rpc/security/audit_log.h"
#include "rpc/security/granted_call.h"

namespace tandem::rpc {
namespace {

std::string NameOf(const Caller& caller) { return caller.member.empty() ? "a process" : caller.member; }

std::string Presented(const Caller& caller) {
  if (caller.token.empty()) return "no key";
  return absl::StrCat(PresentsGrant(caller) ? "a grant of key " : "key ", absl::CHexEscape(caller.key_id));
}

}  // namespace

EpochGate::EpochGate(const JobKey& key, Caller server, Kind kind)
    : server_(key.Identify(std::move(server))), kind_(kind), epoch_(server_.epoch), grants_(GrantKey(key)) {}

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
    // Others only say so.
    if (!server_.token.empty() && !IsMember(caller)) return absl::OkStatus();
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

bool EpochGate::IsMember(const Caller& caller) const {
  return !server_.token.empty() && crypto::SecretsEqual(caller.token, server_.token);
}

absl::StatusOr<std::shared_ptr<GrantHolder>> EpochGate::HolderOf(const Caller& caller,
                                                                 absl::string_view method, Right right) {
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<GrantHolder> holder, grants_.Check(caller));
  if (holder->claims().Has(right)) return holder;
  return absl::PermissionDeniedError(absl::StrCat(method, " needs the right to ", RightName(right),
                                                  ", which ", holder->claims().ToString(),
                                                  ", does not give"));
}

absl::Status EpochGate::Authorize(const Caller& caller, absl::string_view method, Right right) {
  if (ABSL_PREDICT_TRUE(IsMember(caller))) return absl::OkStatus();
  if (PresentsGrant(caller)) return HolderOf(caller, method, right).status();
  return absl::PermissionDeniedError(absl::StrCat(
      method, " needs the right to ", RightName(right), ", and ", NameOf(caller), " presents ",
      Presented(caller), " to ", NameOf(server_), ", which has key ", server_.key_id,
      ": processes need the same key. `tandem key show` prints where a process finds its key; "
      "TANDEM_KEY_FILE chooses another file. The key of a `tandem run` is the file `key` in its log "
      "directory"));
}

std::shared_ptr<ServerCall> EpochGate::AdmitCall(std::shared_ptr<ServerCall> call, absl::string_view method,
                                                 Right right, Reach reach) {
  const Caller& caller = call->caller();
  absl::Status verdict = Admit(caller);
  const bool asks_credential = verdict.ok() && (NeedsToken(right) || PresentsGrant(caller));
  if (ABSL_PREDICT_TRUE(verdict.ok() && (!asks_credential || IsMember(caller)) && right != Right::kAdmin)) {
    return call;
  }
  std::shared_ptr<GrantHolder> holder;
  if (asks_credential && !IsMember(caller)) {
    if (PresentsGrant(caller)) {
      absl::StatusOr<std::shared_ptr<GrantHolder>> found = HolderOf(caller, method, right);
      verdict = found.status();
      if (found.ok()) holder = *std::move(found);
    } else {
      verdict = Authorize(caller, method, right);
    }
  }
  if (holder != nullptr && !holder->claims().tables.empty() && reach == Reach::kAnything &&
      right != Right::kObserve) {
    verdict = absl::PermissionDeniedError(absl::StrCat(method, " may concern any table, and ",
                                                       holder->claims().ToString(), ", covers only some"));
  }
  if (verdict.ok() && holder != nullptr) verdict = holder->TakeCall(call->request().size());
  const AuditLog::Event event{
      .server = NameOf(server_),
      .method = std::string(method),
      .credential = holder != nullptr ? holder->claims().ToString() : Presented(caller),
      .caller = caller.member,
      .peer = call->peer(),
      .verdict = absl::OkStatus()};
  const auto record = [event](const absl::Status& outcome) {
    AuditLog* const log = AuditLog::OfProcess();
    if (log == nullptr) return;
    AuditLog::Event line = event;
    line.verdict = outcome;
    log->Record(line);
  };
  const bool refused = absl::IsPermissionDenied(verdict) || absl::IsResourceExhausted(verdict);
  if (refused || (verdict.ok() && right == Right::kAdmin)) record(verdict);
  if (!verdict.ok()) {
    call->Finish(std::move(verdict));
    return nullptr;
  }
  if (holder != nullptr) call = GrantedCall(std::move(call), std::move(holder), record);
  return call;
}

Service Gated(Service service, std::shared_ptr<EpochGate> gate) {
  for (Method& method : service.methods) {
    method.handler = [gate, right = method.right, reach = method.reach,
                      name = absl::StrCat(service.name, "/", method.name),
                      handler = std::move(method.handler)](std::shared_ptr<ServerCall> call) {
      call = gate->AdmitCall(std::move(call), name, right, reach);
      if (ABSL_PREDICT_TRUE(call != nullptr)) handler(std::move(call));
    };
  }
  return service;
}

}  // namespace tandem::rpc
