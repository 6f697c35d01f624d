// SPDX-License-Identifier: Apache-2.0
#include "rpc/epoch_gate.h"

#include <string>
#include <utility>

#include "absl/base/optimization.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/crypto/crypto.h"

namespace tandem::rpc {
namespace {

std::string NameOf(const Caller& caller) { return caller.member.empty() ? "a process" : caller.member; }

}  // namespace

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

absl::Status EpochGate::Authorize(const Caller& caller, absl::string_view method, Right right) const {
  if (ABSL_PREDICT_TRUE(!server_.token.empty() && crypto::SecretsEqual(caller.token, server_.token))) {
    return absl::OkStatus();
  }
  return absl::PermissionDeniedError(absl::StrCat(
      method, " needs the right to ", RightName(right), ", and ", NameOf(caller), " presents ",
      caller.token.empty() ? "no key" : absl::StrCat("key ", absl::CHexEscape(caller.key_id)), " to ",
      NameOf(server_), ", which has key ", server_.key_id,
      ": processes need the same key. `tandem key show` prints where a process finds its key; "
      "TANDEM_KEY_FILE chooses another file. The key of a `tandem run` is the file `key` in its log "
      "directory"));
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
