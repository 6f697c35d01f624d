// SPDX-License-Identifier: Apache-2.0
#include "base/crypto/tls_socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <string>
#include <thread>
#include <utility>

#include "base/crypto/certificates.h"
#include "base/ipc/descriptor.h"
#include "base/random.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace tandem::crypto {
namespace {

using ::absl::StatusCode;

std::shared_ptr<const TlsContext> ContextOf(char seed) {
  const auto certificates = DeriveCertificates(std::string(kCertificateSeedBytes, seed), "worker/3");
  EXPECT_TRUE(certificates.ok()) << certificates.status();
  auto context = TlsContext::Make(*certificates);
  EXPECT_TRUE(context.ok()) << context.status();
  return *std::move(context);
}

void AwaitReady(int fd, short events) {
  pollfd one = {fd, events, 0};
  ASSERT_GE(poll(&one, 1, 10000), 0);
}

struct End {
  ipc::Descriptor socket;
  std::unique_ptr<TlsSocket> tls;

  absl::Status ShakeHands() {
    while (true) {
      const absl::StatusOr<TlsSocket::Handshake> step = tls->Continue();
      if (!step.ok()) return step.status();
      if (*step == TlsSocket::Handshake::kDone) return absl::OkStatus();
      AwaitReady(socket.get(), *step == TlsSocket::Handshake::kWantsRead ? POLLIN : POLLOUT);
    }
  }
  // Writes all of `bytes`, waiting as needed.
  bool Write(const std::string& bytes) {
    for (size_t done = 0; done < bytes.size();) {
      const ssize_t n = tls->Write(bytes.data() + done, bytes.size() - done);
      if (n > 0) done += static_cast<size_t>(n);
      if (n < 0 && errno != EAGAIN) return false;
      if (n < 0) AwaitReady(socket.get(), POLLOUT);
    }
    return true;
  }
  // Reads `size` bytes, or fewer if the connection ends.
  std::string Read(size_t size) {
    std::string bytes(size, '\0');
    size_t have = 0;
    while (have < size) {
      const ssize_t n = tls->Read(bytes.data() + have, size - have);
      if (n == 0 || (n < 0 && errno != EAGAIN)) break;
      if (n > 0) have += static_cast<size_t>(n);
      if (n < 0 && !tls->HasUnread()) AwaitReady(socket.get(), POLLIN);
    }
    bytes.resize(have);
    return bytes;
  }
};

struct Pair {
  End client, server;
};

Pair Connect(char client_seed, char server_seed) {
  std::array<int, 2> fds{};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds.data()), 0);
  Pair pair;
  pair.client.socket = ipc::Descriptor(fds[0]);
  pair.server.socket = ipc::Descriptor(fds[1]);
  pair.client.tls = std::make_unique<TlsSocket>(ContextOf(client_seed), fds[0], TlsSocket::Side::kConnects);
  pair.server.tls = std::make_unique<TlsSocket>(ContextOf(server_seed), fds[1], TlsSocket::Side::kAccepts);
  return pair;
}

std::string RandomBytesOf(size_t size) {
  CounterRandom random(7, 0);
  std::string bytes(size, '\0');
  for (char& c : bytes) c = static_cast<char>(random());
  return bytes;
}

TEST(CertificatesTest, TheAuthorityIsTheSameForAllProcessesOfASecret) {
  const auto one = DeriveCertificates(std::string(kCertificateSeedBytes, 's'), "worker/0");
  const auto two = DeriveCertificates(std::string(kCertificateSeedBytes, 's'), "ps/1");
  const auto other = DeriveCertificates(std::string(kCertificateSeedBytes, 't'), "worker/0");
  ASSERT_TRUE(one.ok() && two.ok() && other.ok());
  EXPECT_EQ(one->authority, two->authority);
  EXPECT_NE(one->authority, other->authority);
  EXPECT_NE(one->certificate, two->certificate);
  EXPECT_NE(one->private_key, two->private_key);
}

TEST(CertificatesTest, ASecretOfAnotherSizeIsRefused) {
  EXPECT_EQ(DeriveCertificates("short", "worker/0").status().code(), StatusCode::kInvalidArgument);
}

TEST(TlsContextTest, CertificatesThatDoNotBelongTogetherAreRefused) {
  auto one = *DeriveCertificates(std::string(kCertificateSeedBytes, 's'), "worker/0");
  one.private_key = DeriveCertificates(std::string(kCertificateSeedBytes, 's'), "worker/0")->private_key;
  EXPECT_EQ(TlsContext::Make(one).status().code(), StatusCode::kInvalidArgument);
  one.private_key = "no key";
  EXPECT_EQ(TlsContext::Make(one).status().code(), StatusCode::kInvalidArgument);
}

TEST(TlsSocketTest, BytesArriveAsTheyWereSentInBothDirectionsAtOnce) {
  Pair pair = Connect('s', 's');
  const std::string bytes = RandomBytesOf(3 << 20);
  std::thread server([&] {
    ASSERT_TRUE(pair.server.ShakeHands().ok());
    std::thread writer([&] { EXPECT_TRUE(pair.server.Write(bytes)); });
    EXPECT_EQ(pair.server.Read(bytes.size()), bytes);
    writer.join();
  });
  ASSERT_TRUE(pair.client.ShakeHands().ok());
  std::thread writer([&] { EXPECT_TRUE(pair.client.Write(bytes)); });
  EXPECT_EQ(pair.client.Read(bytes.size()), bytes);
  writer.join();
  server.join();
}

TEST(TlsSocketTest, BothSidesRefuseCertificatesOfAnotherSecret) {
  Pair pair = Connect('s', 't');
  absl::Status server;
  std::thread thread([&] { server = pair.server.ShakeHands(); });
  const absl::Status client = pair.client.ShakeHands();
  thread.join();
  EXPECT_EQ(client.code(), StatusCode::kPermissionDenied) << client;
  EXPECT_EQ(server.code(), StatusCode::kPermissionDenied) << server;
}

TEST(TlsSocketTest, APeerThatDoesNotSpeakTlsIsRefused) {
  Pair pair = Connect('s', 's');
  const std::string text = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
  ASSERT_EQ(send(pair.client.socket.get(), text.data(), text.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(text.size()));
  EXPECT_EQ(pair.server.ShakeHands().code(), StatusCode::kUnavailable);
}

TEST(TlsSocketTest, APeerThatClosesDuringTheHandshakeIsUnavailable) {
  Pair pair = Connect('s', 's');
  pair.server.socket.Reset();
  EXPECT_EQ(pair.client.ShakeHands().code(), StatusCode::kUnavailable);
}

TEST(TlsSocketTest, ADamagedRecordIsAnErrorAndNoData) {
  Pair pair = Connect('s', 's');
  std::thread server([&] { ASSERT_TRUE(pair.server.ShakeHands().ok()); });
  ASSERT_TRUE(pair.client.ShakeHands().ok());
  server.join();
  std::string record("\x17\x03\x03\x00\x20", 5);
  record.append(32, 'x');
  ASSERT_EQ(send(pair.client.socket.get(), record.data(), record.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(record.size()));
  char byte = 0;
  ssize_t n = 0;
  do {
    AwaitReady(pair.server.socket.get(), POLLIN);
    n = pair.server.tls->Read(&byte, 1);
  } while (n < 0 && errno == EAGAIN);
  EXPECT_EQ(n, -1);
  EXPECT_EQ(errno, EBADMSG);
}

TEST(TlsSocketTest, BothSidesMayGoOnInClearWhenEachHasReadTheOthersLastRecord) {
  Pair pair = Connect('s', 's');
  std::string at_server;
  std::thread server([&] {
    ASSERT_TRUE(pair.server.ShakeHands().ok());
    at_server = pair.server.Read(5);
    ASSERT_TRUE(pair.server.Write("hello"));
    ASSERT_EQ(send(pair.server.socket.get(), "clear", 5, MSG_NOSIGNAL), 5);
  });
  ASSERT_TRUE(pair.client.ShakeHands().ok());
  ASSERT_TRUE(pair.client.Write("HELLO"));
  EXPECT_EQ(pair.client.Read(5), "hello");
  server.join();
  EXPECT_EQ(at_server, "HELLO");
  std::string clear(5, '\0');
  ASSERT_EQ(recv(pair.client.socket.get(), clear.data(), clear.size(), 0), 5);
  EXPECT_EQ(clear, "clear");
}

TEST(TlsSocketTest, ThePeersEndIsTheEndOfTheData) {
  Pair pair = Connect('s', 's');
  std::thread server([&] {
    ASSERT_TRUE(pair.server.ShakeHands().ok());
    ASSERT_TRUE(pair.server.Write("last"));
    pair.server.socket.Reset();
  });
  ASSERT_TRUE(pair.client.ShakeHands().ok());
  EXPECT_EQ(pair.client.Read(100), "last");
  server.join();
}

}  // namespace
}  // namespace tandem::crypto
