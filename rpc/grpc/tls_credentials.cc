// SPDX-License-Identifier: Apache-2.0
#include "rpc/grpc/tls_credentials.h"

#include <map>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "base/crypto/certificates.h"
#include "base/status.h"
#include "grpcpp/security/tls_certificate_provider.h"
#include "grpcpp/security/tls_credentials_options.h"

namespace tandem::rpc {
namespace {

struct Credentials {
  std::shared_ptr<grpc::ServerCredentials> server;
  std::shared_ptr<grpc::ChannelCredentials> channel;
};

// Returns the credentials of `security`, which are kept for the process's life.
absl::StatusOr<Credentials> CredentialsOf(const std::shared_ptr<const TransportSecurity>& security) {
  static absl::Mutex mutex(absl::kConstInit);
  static auto* const made = new std::map<const void*, Credentials>;
  absl::MutexLock lock(&mutex);
  Credentials& one =
      (*made)[security->files != nullptr ? static_cast<const void*>(security->files) : security.get()];
  if (one.server != nullptr) return one;
  std::shared_ptr<grpc::experimental::CertificateProviderInterface> provider;
  if (security->files != nullptr) {
    constexpr unsigned kLookEverySecond = 1;
    const CertificateFiles::Paths copies = security->files->copies();
    provider = std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
        copies.private_key, copies.certificate, copies.authority, kLookEverySecond);
  } else {
    const crypto::Certificates& certificates = security->certificates;
    provider = std::make_shared<grpc::experimental::StaticDataCertificateProvider>(
        certificates.authority, std::vector<grpc::experimental::IdentityKeyCertPair>{
                                    {certificates.private_key, certificates.certificate}});
  }
  grpc::experimental::TlsServerCredentialsOptions server(provider);
  server.watch_root_certs();
  server.watch_identity_key_cert_pairs();
  server.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  grpc::experimental::TlsChannelCredentialsOptions channel;
  channel.set_certificate_provider(provider);
  channel.watch_root_certs();
  channel.watch_identity_key_cert_pairs();
  one = {.server = grpc::experimental::TlsServerCredentials(server),
         .channel = grpc::experimental::TlsCredentials(channel)};
  return one;
}

}  // namespace

bool UsesTls(const Address& address) { return !address.is_unix() && !TrustedNetwork(); }

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> ServerCredentialsFor(
    const Address& address, const std::shared_ptr<const JobKey>& key) {
  if (!UsesTls(address)) return grpc::InsecureServerCredentials();
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<const JobKey> own, key == nullptr ? ProcessKey() : key);
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<const TransportSecurity> security,
                          SecurityOf(Credential{.key = own, .grant = nullptr}));
  TANDEM_ASSIGN_OR_RETURN(const Credentials credentials, CredentialsOf(security));
  return credentials.server;
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> ChannelCredentialsFor(
    const Address& address, const Credential& credential, grpc::ChannelArguments* arguments) {
  if (!UsesTls(address)) return grpc::InsecureChannelCredentials();
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<const TransportSecurity> security, SecurityOf(credential));
  TANDEM_ASSIGN_OR_RETURN(const Credentials credentials, CredentialsOf(security));
  arguments->SetSslTargetNameOverride(crypto::kCertificateHost);
  return credentials.channel;
}

}  // namespace tandem::rpc
