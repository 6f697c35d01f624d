// SPDX-License-Identifier: Apache-2.0
#include "rpc/security/transport_security.h"

#include <unistd.h>

#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "base/logging.h"
#include "base/status.h"

namespace tandem::rpc {
namespace {

// The label under which the secret of the certificates is derived from a key.
constexpr char kSeedLabel[] = "certificates";

absl::Mutex process_mutex(absl::kConstInit);
struct Slot {
  Credential credential;
  std::string variables;  // of the process when the credential was loaded
  bool chosen = false;    // by SetProcessCredential, whatever the variables are
};
Slot& ProcessSlot() ABSL_EXCLUSIVE_LOCKS_REQUIRED(process_mutex) {
  static auto* const slot = new Slot;
  return *slot;
}

// Returns what says where the process finds its credential. It is a secret.
std::string KeyVariables() {
  std::string text;
  for (const absl::string_view name : {kKeyFileVariable, kKeyVariable, "HOME"}) {
    absl::StrAppend(&text, JobKey::Variable(name).value_or(""), absl::string_view("\0", 1));
  }
  return text;
}

std::string ThisProcess() {
  char host[256] = "";
  if (gethostname(host, sizeof(host) - 1) != 0) host[0] = '\0';
  return absl::StrCat(host, "/", getpid());
}

// Returns the certificates of a credential, which are made once for each.
absl::StatusOr<std::shared_ptr<const TransportSecurity>> Kept(const Credential& credential) {
  static absl::Mutex mutex(absl::kConstInit);
  static auto* const made = new std::map<std::string, std::shared_ptr<const TransportSecurity>>;  // by token
  absl::MutexLock lock(&mutex);
  std::shared_ptr<const TransportSecurity>& one = (*made)[credential.Identify({}).token];
  if (one == nullptr) {
    auto security = std::make_shared<TransportSecurity>();
    if (credential.grant != nullptr) {
      security->certificates = credential.grant->certificates();
    } else {
      TANDEM_ASSIGN_OR_RETURN(security->certificates,
                              crypto::DeriveCertificates(CertificateSeed(*credential.key), ThisProcess()));
    }
    TANDEM_ASSIGN_OR_RETURN(security->context, crypto::TlsContext::Make(security->certificates));
    one = std::move(security);
  }
  return one;
}

}  // namespace

bool TrustedNetwork() {
  const char* const value = std::getenv(kTrustedNetworkVariable);
  if (value == nullptr || absl::string_view(value) != "1") return false;
  static std::once_flag warned;
  std::call_once(warned, [] {
    LogWarning(absl::StrCat(kTrustedNetworkVariable,
                            "=1: TCP connections of this process are neither encrypted nor authenticated; "
                            "everybody on the network can read and change what it sends"));
  });
  return true;
}

Caller Credential::Identify(Caller caller) const {
  return grant != nullptr ? grant->Identify(std::move(caller)) : key->Identify(std::move(caller));
}

Caller Identified(Caller caller, const Credential& credential) {
  return caller.token.empty() ? credential.Identify(std::move(caller)) : caller;
}

std::string Credential::ToString() const {
  return grant != nullptr ? absl::StrCat(grant->claims().ToString(), ", of ", grant->source())
                          : absl::StrCat("key ", key->Id(), " of ", key->source());
}

absl::StatusOr<Credential> ProcessCredential() {
  absl::MutexLock lock(&process_mutex);
  Slot& slot = ProcessSlot();
  // A notebook may set them at any time.
  std::string variables = KeyVariables();
  if (slot.chosen ||
      (slot.variables == variables && (slot.credential.key != nullptr || slot.credential.grant != nullptr))) {
    return slot.credential;
  }
  TANDEM_ASSIGN_OR_RETURN(const JobKey::Text text, JobKey::LoadText());
  Credential credential;
  if (absl::StartsWith(text.text, Grant::kPrefix)) {
    TANDEM_ASSIGN_OR_RETURN(Grant grant, Grant::FromText(text.text, text.source));
    credential.grant = std::make_shared<const Grant>(std::move(grant));
  } else {
    TANDEM_ASSIGN_OR_RETURN(JobKey key, JobKey::FromText(text.text, text.source));
    credential.key = std::make_shared<const JobKey>(std::move(key));
  }
  slot = {.credential = std::move(credential), .variables = std::move(variables), .chosen = false};
  return slot.credential;
}

absl::StatusOr<Credential> CredentialOf(const std::shared_ptr<const JobKey>& key) {
  return key == nullptr ? ProcessCredential() : Credential{.key = key, .grant = nullptr};
}

absl::StatusOr<std::shared_ptr<const JobKey>> ProcessKey() {
  TANDEM_ASSIGN_OR_RETURN(const Credential credential, ProcessCredential());
  if (credential.key != nullptr) return credential.key;
  return absl::FailedPreconditionError(
      absl::StrCat("this process has ", credential.ToString(),
                   ". With a grant a process can call the servers of a job, and be no part of it: this needs "
                   "the job's key, in the file that ",
                   kKeyFileVariable, " names"));
}

void SetProcessCredential(Credential credential) {
  absl::MutexLock lock(&process_mutex);
  const bool chosen = credential.key != nullptr || credential.grant != nullptr;
  ProcessSlot() = {.credential = std::move(credential), .variables = {}, .chosen = chosen};
}

std::string CertificateSeed(const JobKey& key) {
  return key.Derive(kSeedLabel, crypto::kCertificateSeedBytes);
}

absl::StatusOr<std::shared_ptr<const TransportSecurity>> SecurityOf(const Credential& credential) {
  TANDEM_ASSIGN_OR_RETURN(CertificateFiles* const files, CertificateFiles::OfProcess());
  if (files != nullptr) {
    return std::make_shared<TransportSecurity>(
        TransportSecurity{.certificates = {}, .context = files->context(), .files = files});
  }
  return Kept(credential);
}

absl::StatusOr<std::shared_ptr<const TransportSecurity>> DerivedSecurity(std::shared_ptr<const JobKey> key) {
  if (key == nullptr) {
    TANDEM_ASSIGN_OR_RETURN(key, ProcessKey());
  }
  return Kept(Credential{.key = std::move(key), .grant = nullptr});
}

}  // namespace tandem::rpc
