// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_SECURITY_CERTIFICATE_FILES_H_
#define TANDEM_RPC_SECURITY_CERTIFICATE_FILES_H_

// Certificates of a PKI, in files that somebody renews while the process runs (cert-manager, spiffe-helper,
// `tandem cert`). They secure connections in place of the certificates that are derived from the job's key.
// The key, or a grant, still says what a caller may do.

#include <array>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/crypto/certificates.h"
#include "base/crypto/tls_socket.h"
#include "base/ipc/descriptor.h"

namespace tandem::rpc {

// The variables that `--tls-cert`, `--tls-key` and `--tls-ca` set. All three or none.
inline constexpr char kTlsCertVariable[] = "TANDEM_TLS_CERT";
inline constexpr char kTlsKeyVariable[] = "TANDEM_TLS_KEY";
inline constexpr char kTlsCaVariable[] = "TANDEM_TLS_CA";

// Looks at three files from time to time. When they have changed, they are checked
// (crypto::CheckCertificates) and taken over together; files that do not pass change nothing, and the log
// says why. Thread-safe.
class CertificateFiles {
 public:
  struct Paths {
    std::string certificate;
    std::string private_key;
    std::string authority;
  };
  static constexpr absl::Duration kLookEvery = absl::Seconds(10);

  // Reads and checks the files, and starts to look at them. Errors name the file, or what is wrong with them:
  // those of ReadFile and CheckCertificates; PermissionDenied if other users can read the private key.
  static absl::StatusOr<std::unique_ptr<CertificateFiles>> Watch(Paths paths,
                                                                 absl::Duration every = kLookEvery);
  // Returns those of this process, or nullptr if its variables name none. They are kept for its life. Errors:
  // those of Watch; InvalidArgument if only some of the variables are set.
  static absl::StatusOr<CertificateFiles*> OfProcess();
  ~CertificateFiles();

  // Returns the files that were last taken over.
  std::shared_ptr<const crypto::TlsContext> context() const;
  // When the certificate in use expires.
  absl::Time expires() const;
  // How often changed files were taken over, and how often the reason to refuse them was a new one.
  int64_t swaps() const;
  int64_t refusals() const;
  // Returns paths of copies in memory that have the files last taken over, for a library that watches files
  // itself: it never sees a pair that does not match for longer than it takes to replace two descriptors.
  Paths copies() const;

 private:
  CertificateFiles(Paths paths, absl::Duration every) : paths_(std::move(paths)), every_(every) {}
  absl::StatusOr<crypto::Certificates> Read() const;
  absl::Status TakeOver(const crypto::Certificates& found) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Look() ABSL_LOCKS_EXCLUDED(mutex_);
  void Run();

  const Paths paths_;
  const absl::Duration every_;
  mutable absl::Mutex mutex_;
  bool stops_ ABSL_GUARDED_BY(mutex_) = false;
  crypto::Certificates in_use_ ABSL_GUARDED_BY(mutex_);
  std::string refused_ ABSL_GUARDED_BY(mutex_);  // why the present files are not taken over
  std::shared_ptr<const crypto::TlsContext> context_ ABSL_GUARDED_BY(mutex_);
  absl::Time expires_ ABSL_GUARDED_BY(mutex_);
  absl::Duration warns_before_ ABSL_GUARDED_BY(mutex_);  // it expires
  bool warned_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t swaps_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t refusals_ ABSL_GUARDED_BY(mutex_) = 0;
  std::array<ipc::Descriptor, 3> copies_ ABSL_GUARDED_BY(mutex_);  // the numbers stay
  std::thread thread_;
};

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_SECURITY_CERTIFICATE_FILES_H_
