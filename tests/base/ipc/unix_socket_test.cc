// SPDX-License-Identifier: Apache-2.0
#include "base/ipc/unix_socket.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/testing/status_matchers.h"

namespace tandem::ipc {
namespace {

using ::tandem::testing::StatusIs;

TEST(UnixSocketTest, APacketTravelsWithADescriptor) {
  const std::string name = absl::StrCat("tandem-test-", RandomToken());
  TANDEM_ASSERT_OK_AND_ASSIGN(Descriptor listener, ListenAbstract(name, 1));
  TANDEM_ASSERT_OK_AND_ASSIGN(Descriptor client, ConnectAbstract(name));
  Descriptor server(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  ASSERT_GE(server.get(), 0);
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  Descriptor read_end(ends[0]), write_end(ends[1]);
  ASSERT_TRUE(SendPacket(client.get(), "hello", 5, write_end.get()));
  ASSERT_TRUE(AwaitReadable(server.get(), absl::Now() + absl::Seconds(30)));
  char text[5];
  Descriptor passed;
  ASSERT_TRUE(ReceivePacket(server.get(), text, sizeof(text), &passed));
  EXPECT_EQ(std::string(text, 5), "hello");
  ASSERT_GE(passed.get(), 0);
  write_end = Descriptor();
  EXPECT_EQ(write(passed.get(), "x", 1), 1);
  EXPECT_EQ(read(read_end.get(), text, 1), 1);
}

TEST(UnixSocketTest, APacketOfAnotherSizeOrTheEndIsNone) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  Descriptor one(ends[0]), two(ends[1]);
  char text[8];
  EXPECT_FALSE(ReceivePacket(two.get(), text, 4));  // nothing has arrived
  EXPECT_FALSE(AwaitReadable(two.get(), absl::Now()));
  ASSERT_TRUE(SendPacket(one.get(), "long one", 8));
  EXPECT_FALSE(ReceivePacket(two.get(), text, 4));
  ASSERT_TRUE(SendPacket(one.get(), "ab", 2));
  EXPECT_FALSE(ReceivePacket(two.get(), text, 4));
  one = Descriptor();
  EXPECT_TRUE(AwaitReadable(two.get(), absl::Now() + absl::Seconds(30)));
  EXPECT_FALSE(ReceivePacket(two.get(), text, 4));
  EXPECT_FALSE(SendPacket(two.get(), "x", 1));
}

TEST(UnixSocketTest, TheEndOfAPeerIsSeenThoughAnotherProcessKeepsItsSocket) {
  const std::string name = absl::StrCat("tandem-test-", RandomToken());
  TANDEM_ASSERT_OK_AND_ASSIGN(Descriptor listener, ListenAbstract(name, 1));
  int copies[2];  // over which the peer passes its socket to this process
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, copies), 0);
  Descriptor ours(copies[0]), theirs(copies[1]);
  const pid_t peer = fork();
  ASSERT_GE(peer, 0);
  if (peer == 0) {
    const absl::StatusOr<Descriptor> client = ConnectAbstract(name);
    if (client.ok()) SendPacket(theirs.get(), "x", 1, client->get());
    pause();
    _exit(0);
  }
  ASSERT_TRUE(AwaitReadable(ours.get(), absl::Now() + absl::Seconds(30)));
  char text[1];
  Descriptor copy;
  ASSERT_TRUE(ReceivePacket(ours.get(), text, sizeof(text), &copy));
  Descriptor server(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  ASSERT_TRUE(server.valid());
  const Descriptor process = OpenPeerProcess(server.get());
  const bool ended_early = process.valid() && AwaitReadable(process.get(), absl::Now());
  kill(peer, SIGKILL);
  const bool ended = process.valid() && AwaitReadable(process.get(), absl::Now() + absl::Seconds(30));
  EXPECT_FALSE(AwaitReadable(server.get(), absl::Now()));
  waitpid(peer, nullptr, 0);
  if (!process.valid()) GTEST_SKIP() << "the kernel has no pidfds";
  EXPECT_FALSE(ended_early);
  EXPECT_TRUE(ended);
}

TEST(UnixSocketTest, NobodyIsReachedUnderANameThatIsGone) {
  const std::string name = absl::StrCat("tandem-test-", RandomToken());
  EXPECT_THAT(ConnectAbstract(name).status(), StatusIs(absl::StatusCode::kFailedPrecondition));
  {
    TANDEM_ASSERT_OK_AND_ASSIGN(Descriptor listener, ListenAbstract(name, 1));
    EXPECT_THAT(ListenAbstract(name, 1).status(), StatusIs(absl::StatusCode::kFailedPrecondition));
    TANDEM_ASSERT_OK(ConnectAbstract(name).status());
  }
  EXPECT_THAT(ConnectAbstract(name).status(), StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST(UnixSocketTest, ProcessesOfAnotherUserAreNotSpokenTo) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can run a process as another user";
  constexpr uid_t kOther = 65534;
  const std::string name = absl::StrCat("tandem-test-", RandomToken());
  TANDEM_ASSERT_OK_AND_ASSIGN(Descriptor listener, ListenAbstract(name, 1));
  const pid_t child = fork();
  if (child == 0) {  // the other user
    bool right = setresuid(kOther, kOther, kOther) == 0;
    const absl::StatusOr<Descriptor> refused = ConnectAbstract(name);
    right = right && absl::IsFailedPrecondition(refused.status()) &&
            refused.status().message().find("runs as user 0") != absl::string_view::npos;
    // A client that does not check: connects and waits until the server has closed the connection.
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    const Descriptor rude(socket(AF_UNIX, SOCK_SEQPACKET, 0));
    right = right && connect(rude.get(), reinterpret_cast<sockaddr*>(&address), length) == 0;
    char byte;
    right = right && recv(rude.get(), &byte, 1, 0) <= 0;
    _exit(right ? 0 : 1);
  }
  ASSERT_GT(child, 0);
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(AwaitReadable(listener.get(), absl::Now() + absl::Seconds(30)));
    EXPECT_FALSE(AcceptAbstract(listener.get()).valid());
    EXPECT_EQ(errno, EPERM);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  // A process of the same user is served.
  TANDEM_ASSERT_OK_AND_ASSIGN(const Descriptor own, ConnectAbstract(name));
  EXPECT_TRUE(AcceptAbstract(listener.get()).valid());
  TANDEM_EXPECT_OK(CheckSameUser(own.get()));
}

TEST(UnixSocketTest, TokensDiffer) {
  EXPECT_EQ(RandomToken().size(), 32u);
  EXPECT_NE(RandomToken(), RandomToken());
}

}  // namespace
}  // namespace tandem::ipc
