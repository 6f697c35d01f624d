// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BASE_CRYPTO_TLS_SOCKET_H_
#define TANDEM_BASE_CRYPTO_TLS_SOCKET_H_

// TLS on a socket between two processes whose certificates are derived from one secret.

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/crypto/certificates.h"

// These are types of OpenSSL, whose headers only base/crypto includes.
struct ssl_st;
struct ssl_ctx_st;

namespace tandem::crypto {

// The certificates of a process in the form that connections need. Immutable; shared by connections.
class TlsContext {
 public:
  // InvalidArgument if the certificates do not parse or do not belong together.
  static absl::StatusOr<std::shared_ptr<const TlsContext>> Make(const Certificates& certificates);
  ~TlsContext();

 private:
  friend class TlsSocket;
  explicit TlsContext(ssl_ctx_st* context) : context_(context) {}
  ssl_ctx_st* const context_;
};

// TLS 1.3 on a connected, non-blocking socket. Each side shows a certificate, and refuses one of another
// authority or for clients only. A socket of this kind sends nothing but what is handed to it: no session
// tickets and no final alert. So the owner may stop using TLS when both sides have read all that was sent,
// and go on in clear.
//
// One thread may read while another one writes. The rest is for one thread at a time.
class TlsSocket {
 public:
  enum class Side { kConnects, kAccepts };
  // `fd` is borrowed.
  TlsSocket(const std::shared_ptr<const TlsContext>& context, int fd, Side side);
  ~TlsSocket();

  enum class Handshake { kDone, kWantsRead, kWantsWrite };
  // Does what can be done of the handshake without blocking. Call it again when the socket is ready for what
  // is wanted. Errors, after which the socket is of no use: PermissionDenied if the other side's certificate
  // is of another authority, or if it says so of this side's; Unavailable if it does not speak TLS, or has
  // closed the connection.
  absl::StatusOr<Handshake> Continue();

  // Like recv and send with MSG_DONTWAIT and MSG_NOSIGNAL, after the handshake. Read returns 0 when the
  // connection has been closed. Damaged data are EBADMSG. Write takes at most 16 KiB in one call. After
  // EAGAIN, its next call must get the same bytes, wherever they are, and as many or more.
  ssize_t Read(void* to, size_t bytes);
  ssize_t Write(const void* from, size_t bytes);
  // Returns true if Read would return bytes although the socket may not be ready for reading.
  bool HasUnread();

 private:
  absl::Mutex mutex_;
  ssl_st* const ssl_ ABSL_PT_GUARDED_BY(mutex_);
  uint64_t written_ ABSL_GUARDED_BY(mutex_) = 0;  // with the present key
};

}  // namespace tandem::crypto

#endif  // TANDEM_BASE_CRYPTO_TLS_SOCKET_H_
