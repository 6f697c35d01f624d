// SPDX-License-Identifier: Apache-2.0
#include "base/crypto/tls_socket.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/crypto/make_certificates.h"
#include "openssl/err.h"
#include "openssl/pem.h"
#include "openssl/ssl.h"

namespace tandem::crypto {
namespace {

constexpr size_t kRecordBytes = 16 << 10;
// A key of AES-GCM is replaced long before its limit (RFC 8446, 5.5: 24 million full records).
constexpr uint64_t kBytesOfKey = uint64_t{16} << 30;

// OpenSSL's own sockets write without MSG_NOSIGNAL.
int FdOf(BIO* bio) { return static_cast<int>(reinterpret_cast<intptr_t>(BIO_get_data(bio))); }

int Outcome(BIO* bio, ssize_t n, int retry_flags) {
  BIO_clear_retry_flags(bio);
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
    BIO_set_flags(bio, retry_flags | BIO_FLAGS_SHOULD_RETRY);
  }
  return static_cast<int>(n);
}

int WriteTo(BIO* bio, const char* data, int bytes) {
  return Outcome(bio, send(FdOf(bio), data, static_cast<size_t>(bytes), MSG_NOSIGNAL | MSG_DONTWAIT),
                 BIO_FLAGS_WRITE);
}

int ReadFrom(BIO* bio, char* data, int bytes) {
  return Outcome(bio, recv(FdOf(bio), data, static_cast<size_t>(bytes), MSG_DONTWAIT), BIO_FLAGS_READ);
}

long Control(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

BIO_METHOD* SocketMethod() {
  static BIO_METHOD* const method = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "tandem socket");
    BIO_meth_set_write(made, WriteTo);
    BIO_meth_set_read(made, ReadFrom);
    BIO_meth_set_ctrl(made, Control);
    return made;  // never freed
  }();
  return method;
}

BIO* NewSocket(int fd) {
  BIO* const bio = BIO_new(SocketMethod());
  if (bio == nullptr) return nullptr;
  BIO_set_data(bio, reinterpret_cast<void*>(static_cast<intptr_t>(fd)));
  BIO_set_init(bio, 1);
  return bio;
}

// Returns whether `context` got the certificates.
bool Use(SSL_CTX* context, const Certificates& certificates) {
  const OwnedBio authorities = OpenText(certificates.authority), chain = OpenText(certificates.certificate);
  int trusted = 0;
  while (X509* const one = PEM_read_bio_X509(authorities.get(), nullptr, nullptr, nullptr)) {
    const OwnedCertificate authority(one);
    if (X509_STORE_add_cert(SSL_CTX_get_cert_store(context), authority.get()) != 1) return false;
    ++trusted;
  }
  const OwnedCertificate own(PEM_read_bio_X509(chain.get(), nullptr, nullptr, nullptr));
  if (trusted == 0 || own == nullptr || SSL_CTX_use_certificate(context, own.get()) != 1) return false;
  while (X509* const between = PEM_read_bio_X509(chain.get(), nullptr, nullptr, nullptr)) {
    if (SSL_CTX_add_extra_chain_cert(context, between) == 1) continue;  // which now owns it
    X509_free(between);
    return false;
  }
  ERR_clear_error();  // the ends of the texts
  const OwnedKey key(
      PEM_read_bio_PrivateKey(OpenText(certificates.private_key).get(), nullptr, nullptr, nullptr));
  return key != nullptr && SSL_CTX_use_PrivateKey(context, key.get()) == 1 &&
         SSL_CTX_check_private_key(context) == 1;
}

absl::Status HandshakeError(SSL* ssl, int error) {
  const int saved = errno;
  if (error == SSL_ERROR_ZERO_RETURN || (error == SSL_ERROR_SYSCALL && ERR_peek_error() == 0)) {
    return absl::UnavailableError(saved == 0 || saved == EAGAIN
                                      ? "the connection was closed during the TLS handshake"
                                      : absl::StrCat("the TLS handshake failed: ", std::strerror(saved)));
  }
  const unsigned long code = ERR_get_error();
  const int reason = ERR_GET_REASON(code);
  const char* const text = ERR_reason_error_string(code);
  ERR_clear_error();
  const bool certificate =
      SSL_get_verify_result(ssl) != X509_V_OK || reason == SSL_R_TLSV1_ALERT_UNKNOWN_CA ||
      reason == SSL_R_SSLV3_ALERT_BAD_CERTIFICATE || reason == SSL_R_TLSV1_ALERT_DECRYPT_ERROR ||
      reason == SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN;
  const std::string message =
      absl::StrCat("the TLS handshake failed: ", text != nullptr ? text : "no reason given");
  return certificate ? absl::PermissionDeniedError(message) : absl::UnavailableError(message);
}

}  // namespace

absl::StatusOr<std::shared_ptr<const TlsContext>> TlsContext::Make(const Certificates& certificates) {
  SSL_CTX* const context = SSL_CTX_new(TLS_method());
  std::shared_ptr<const TlsContext> made(new TlsContext(context));
  if (context == nullptr || !Use(context, certificates) ||
      // Both sides must be processes with the secret: certificates for clients only (IssueClientCertificate)
      // are refused.
      SSL_CTX_set_purpose(context, X509_PURPOSE_SSL_SERVER) != 1 ||
      SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_ciphersuites(context,
                               "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:"
                               "TLS_CHACHA20_POLY1305_SHA256") != 1 ||
      SSL_CTX_set_num_tickets(context, 0) != 1) {
    ERR_clear_error();
    return absl::InvalidArgumentError("the certificates do not parse, or do not belong together");
  }
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_read_ahead(context, 0);  // nothing that follows the last record of TLS is read
  return made;
}

TlsContext::~TlsContext() { SSL_CTX_free(context_); }

TlsSocket::TlsSocket(const std::shared_ptr<const TlsContext>& context, int fd, Side side)
    : ssl_(SSL_new(context->context_)) {
  BIO* const bio = NewSocket(fd);
  SSL_set_bio(ssl_, bio, bio);
  SSL_set_hostflags(ssl_, 0);
  SSL_set1_host(ssl_, kCertificateHost);
  if (side == Side::kConnects) {
    SSL_set_connect_state(ssl_);
  } else {
    SSL_set_accept_state(ssl_);
  }
}

TlsSocket::~TlsSocket() {
  absl::MutexLock lock(&mutex_);
  SSL_free(ssl_);
}

absl::StatusOr<TlsSocket::Handshake> TlsSocket::Continue() {
  absl::MutexLock lock(&mutex_);
  ERR_clear_error();
  errno = 0;
  const int result = SSL_do_handshake(ssl_);
  if (result == 1) return Handshake::kDone;
  switch (const int error = SSL_get_error(ssl_, result)) {
    case SSL_ERROR_WANT_READ:
      return Handshake::kWantsRead;
    case SSL_ERROR_WANT_WRITE:
      return Handshake::kWantsWrite;
    default:
      return HandshakeError(ssl_, error);
  }
}

ssize_t TlsSocket::Read(void* to, size_t bytes) {
  absl::MutexLock lock(&mutex_);
  ERR_clear_error();
  errno = 0;
  size_t read = 0;
  const int result = SSL_read_ex(ssl_, to, bytes, &read);
  if (result == 1) return static_cast<ssize_t>(read);
  const int error = SSL_get_error(ssl_, result);
  if (error == SSL_ERROR_ZERO_RETURN) return 0;
  if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) {
    errno = EAGAIN;
  } else if (ERR_GET_REASON(ERR_peek_error()) == SSL_R_UNEXPECTED_EOF_WHILE_READING ||
             (error == SSL_ERROR_SYSCALL && errno == 0)) {
    return 0;  // no alert says that the connection ends: frames tell whether something is missing
  } else if (error != SSL_ERROR_SYSCALL || errno == 0) {
    errno = EBADMSG;
  }
  return -1;
}

ssize_t TlsSocket::Write(const void* from, size_t bytes) {
  absl::MutexLock lock(&mutex_);
  ERR_clear_error();
  errno = 0;
  if (written_ >= kBytesOfKey) {
    written_ = 0;
    SSL_key_update(ssl_, SSL_KEY_UPDATE_NOT_REQUESTED);
  }
  size_t written = 0;
  const int result = SSL_write_ex(ssl_, from, std::min(bytes, kRecordBytes), &written);
  if (result == 1) {
    written_ += written;
    return static_cast<ssize_t>(written);
  }
  const int error = SSL_get_error(ssl_, result);
  if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) {
    errno = EAGAIN;
  } else if (errno == 0) {
    errno = EBADMSG;
  }
  return -1;
}

bool TlsSocket::HasUnread() {
  absl::MutexLock lock(&mutex_);
  return SSL_pending(ssl_) > 0;
}

}  // namespace tandem::crypto
