// SPDX-License-Identifier: Apache-2.0
#include "rpc/security/certificate_files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/crypto/pki.h"
#include "base/logging.h"
#include "base/read_file.h"
#include "base/status.h"

namespace tandem::rpc {
namespace {

constexpr absl::Duration kSoon = absl::Hours(7 * 24);

bool Same(const crypto::Certificates& a, const crypto::Certificates& b) {
  return a.authority == b.authority && a.certificate == b.certificate && a.private_key == b.private_key;
}

// Returns a file in memory with `text`.
absl::StatusOr<ipc::Descriptor> InMemory(const std::string& text) {
  ipc::Descriptor file(::memfd_create("tandem certificate", MFD_CLOEXEC));
  if (!file.valid() ||
      ::pwrite(file.get(), text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
    return absl::ErrnoToStatus(errno, "cannot keep a certificate in memory");
  }
  return file;
}

std::string PathOf(const ipc::Descriptor& file) { return absl::StrCat("/proc/self/fd/", file.get()); }

std::string Date(absl::Time time) {
  return absl::FormatTime("%Y-%m-%d %H:%M UTC", time, absl::UTCTimeZone());
}

}  // namespace

absl::StatusOr<std::unique_ptr<CertificateFiles>> CertificateFiles::Watch(Paths paths, absl::Duration every) {
  std::unique_ptr<CertificateFiles> files(new CertificateFiles(std::move(paths), every));
  TANDEM_ASSIGN_OR_RETURN(const crypto::Certificates first, files->Read());
  {
    absl::MutexLock lock(&files->mutex_);
    TANDEM_RETURN_IF_ERROR(Annotate(files->TakeOver(first), files->paths_.certificate));
  }
  files->thread_ = std::thread([self = files.get()] { self->Run(); });
  return files;
}

absl::StatusOr<CertificateFiles*> CertificateFiles::OfProcess() {
  static absl::Mutex mutex(absl::kConstInit);
  static CertificateFiles* files = nullptr;
  const auto variable = [](const char* name) -> std::string {
    const char* const value = std::getenv(name);
    return value == nullptr ? "" : value;
  };
  Paths paths{.certificate = variable(kTlsCertVariable),
              .private_key = variable(kTlsKeyVariable),
              .authority = variable(kTlsCaVariable)};
  if (paths.certificate.empty() && paths.private_key.empty() && paths.authority.empty()) return nullptr;
  if (paths.certificate.empty() || paths.private_key.empty() || paths.authority.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("of --tls-cert (", kTlsCertVariable, "), --tls-key (",
                                                   kTlsKeyVariable, ") and --tls-ca (", kTlsCaVariable,
                                                   ") give all or none"));
  }
  absl::MutexLock lock(&mutex);
  if (files == nullptr) {
    TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<CertificateFiles> watched, Watch(std::move(paths)));
    files = watched.release();
  }
  return files;
}

CertificateFiles::~CertificateFiles() {
  {
    absl::MutexLock lock(&mutex_);
    stops_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

std::shared_ptr<const crypto::TlsContext> CertificateFiles::context() const {
  absl::MutexLock lock(&mutex_);
  return context_;
}

absl::Time CertificateFiles::expires() const {
  absl::MutexLock lock(&mutex_);
  return expires_;
}

int64_t CertificateFiles::swaps() const {
  absl::MutexLock lock(&mutex_);
  return swaps_;
}

int64_t CertificateFiles::refusals() const {
  absl::MutexLock lock(&mutex_);
  return refusals_;
}

CertificateFiles::Paths CertificateFiles::copies() const {
  absl::MutexLock lock(&mutex_);
  return {
      .certificate = PathOf(copies_[0]), .private_key = PathOf(copies_[1]), .authority = PathOf(copies_[2])};
}

absl::StatusOr<crypto::Certificates> CertificateFiles::Read() const {
  struct stat facts = {};
  if (::stat(paths_.private_key.c_str(), &facts) == 0 && (facts.st_mode & S_IROTH) != 0) {
    return absl::PermissionDeniedError(absl::StrCat("all users can read the private key ", paths_.private_key,
                                                    "; if none has: chmod o-r ", paths_.private_key));
  }
  crypto::Certificates found;
  TANDEM_ASSIGN_OR_RETURN(found.certificate, ReadFile(paths_.certificate));
  TANDEM_ASSIGN_OR_RETURN(found.private_key, ReadFile(paths_.private_key));
  TANDEM_ASSIGN_OR_RETURN(found.authority, ReadFile(paths_.authority));
  return found;
}

absl::Status CertificateFiles::TakeOver(const crypto::Certificates& found) {
  TANDEM_ASSIGN_OR_RETURN(const absl::Time expires, crypto::CheckCertificates(found, absl::Now()));
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<const crypto::TlsContext> context, crypto::TlsContext::Make(found));
  std::array<ipc::Descriptor, 3> fresh;
  TANDEM_ASSIGN_OR_RETURN(fresh[0], InMemory(found.certificate));
  TANDEM_ASSIGN_OR_RETURN(fresh[1], InMemory(found.private_key));
  TANDEM_ASSIGN_OR_RETURN(fresh[2], InMemory(found.authority));
  for (size_t i = 0; i < fresh.size(); ++i) {
    if (!copies_[i].valid()) {
      copies_[i] = std::move(fresh[i]);
    } else if (::dup3(fresh[i].get(), copies_[i].get(), O_CLOEXEC) < 0) {
      return absl::ErrnoToStatus(errno, "cannot replace a certificate in memory");
    }
  }
  context_ = std::move(context);
  expires_ = expires;
  // Those of some PKIs are good for hours.
  warns_before_ = std::min(kSoon, (expires - absl::Now()) / 3);
  warned_ = false;
  in_use_ = found;
  refused_.clear();
  return absl::OkStatus();
}

void CertificateFiles::Look() {
  const absl::StatusOr<crypto::Certificates> found = Read();
  absl::MutexLock lock(&mutex_);
  if (!warned_ && expires_ - absl::Now() < warns_before_) {
    warned_ = true;
    LogWarning(absl::StrCat("the certificate ", paths_.certificate, " expires on ", Date(expires_)));
  }
  // A file that is missing for a moment is no news.
  if (!found.ok() && absl::IsNotFound(found.status())) return;
  if (found.ok() && Same(*found, in_use_)) return;
  // What was refused is tried again: a date, or a shortage, passes.
  const absl::Status taken = found.ok() ? TakeOver(*found) : found.status();
  if (taken.ok()) {
    ++swaps_;
    LogInfo(
        absl::StrCat("the certificate ", paths_.certificate, " was renewed; it expires on ", Date(expires_)));
    return;
  }
  if (refused_ == taken.message()) return;  // it is in the log
  refused_ = std::string(taken.message());
  ++refusals_;
  LogError(absl::StrCat("the new certificates in ", paths_.certificate, ", ", paths_.private_key, " and ",
                        paths_.authority, " are not used, and the old ones go on until ", Date(expires_),
                        ": ", taken.message()));
}

void CertificateFiles::Run() {
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      if (mutex_.AwaitWithTimeout(absl::Condition(&stops_), every_)) return;
    }
    Look();
  }
}

}  // namespace tandem::rpc
