// SPDX-License-Identifier: Apache-2.0
#include "rpc/security/transport_security.h"

#include <unistd.h>

#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
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
std::shared_ptr<const JobKey>& ProcessKeySlot() ABSL_EXCLUSIVE_LOCKS_REQUIRED(process_mutex) {
  static auto* const key = new std::shared_ptr<const JobKey>;
  return *key;
}

std::string ThisProcess() {
  char host[256] = "";
  if (gethostname(host, sizeof(host) - 1) != 0) host[0] = '\0';
  return absl::StrCat(host, "/", getpid());
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

absl::StatusOr<std::shared_ptr<const JobKey>> ProcessKey() {
  absl::MutexLock lock(&process_mutex);
  std::shared_ptr<const JobKey>& key = ProcessKeySlot();
  if (key == nullptr) {
    TANDEM_ASSIGN_OR_RETURN(JobKey loaded, JobKey::Load());
    key = std::make_shared<const JobKey>(std::move(loaded));
  }
  return key;
}

void SetProcessKey(JobKey key) {
  absl::MutexLock lock(&process_mutex);
  ProcessKeySlot() = std::make_shared<const JobKey>(std::move(key));
}

absl::StatusOr<std::shared_ptr<const TransportSecurity>> SecurityOf(std::shared_ptr<const JobKey> key) {
  if (key == nullptr) {
    TANDEM_ASSIGN_OR_RETURN(key, ProcessKey());
  }
  static absl::Mutex mutex(absl::kConstInit);
  static auto* const made = new std::map<std::string, std::shared_ptr<const TransportSecurity>>;  // by token
  absl::MutexLock lock(&mutex);
  std::shared_ptr<const TransportSecurity>& one = (*made)[key->Token()];
  if (one == nullptr) {
    auto security = std::make_shared<TransportSecurity>();
    TANDEM_ASSIGN_OR_RETURN(
        security->certificates,
        crypto::DeriveCertificates(key->Derive(kSeedLabel, crypto::kCertificateSeedBytes), ThisProcess()));
    TANDEM_ASSIGN_OR_RETURN(security->context, crypto::TlsContext::Make(security->certificates));
    one = std::move(security);
  }
  return one;
}

}  // namespace tandem::rpc
