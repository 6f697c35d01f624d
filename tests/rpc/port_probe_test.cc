// SPDX-License-Identifier: Apache-2.0
#include "rpc/port_probe.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/clock.h"
#include "base/ipc/descriptor.h"
#include "gtest/gtest.h"
#include "tests/testing/temp_dir.h"

namespace tandem::rpc {
namespace {

constexpr absl::Duration kLong = absl::Seconds(30);

// A socket of 127.0.0.1 at a port that the kernel picks.
struct BoundPort {
  BoundPort() : socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(name);
    EXPECT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&name), size), 0);
    EXPECT_EQ(::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&name), &size), 0);
    port = ntohs(name.sin_port);
  }
  std::string address(const std::string& host = "127.0.0.1") const { return absl::StrCat(host, ":", port); }

  ipc::Descriptor socket;
  int port = 0;
};

absl::StatusOr<std::vector<sockaddr_storage>> Loopback() {
  sockaddr_storage address{};
  auto* const name = reinterpret_cast<sockaddr_in*>(&address);
  name->sin_family = AF_INET;
  name->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return std::vector<sockaddr_storage>{address};
}

TEST(PortProbeTest, APortThatNobodyListensAtRefuses) {
  const BoundPort bound;
  EXPECT_TRUE(PortProbe().Refuses(bound.address(), kLong));
  ASSERT_EQ(::listen(bound.socket.get(), 1), 0);
  EXPECT_FALSE(PortProbe().Refuses(bound.address(), kLong));
  EXPECT_FALSE(PortProbe().Refuses("no address", kLong));
}

TEST(PortProbeTest, APortThatSomebodyListensAtAccepts) {
  const BoundPort bound;
  EXPECT_FALSE(PortProbe().Accepts(bound.address(), kLong));
  ASSERT_EQ(::listen(bound.socket.get(), 1), 0);
  EXPECT_TRUE(PortProbe().Accepts(bound.address(), kLong));
  EXPECT_FALSE(PortProbe().Accepts("no address", kLong));
}

TEST(PortProbeTest, AUnixSocketRefusesOnceItsListenerHasGone) {
  const tandem::testing::TempDir directory;
  const std::string path = directory.File("socket");
  EXPECT_TRUE(PortProbe().Refuses(absl::StrCat("unix:", path), kLong)) << "there is no file";
  ipc::Descriptor listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  std::memcpy(name.sun_path, path.data(), path.size());
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&name), sizeof(name)), 0);
  ASSERT_EQ(::listen(listener.get(), 1), 0);
  EXPECT_FALSE(PortProbe().Refuses(absl::StrCat("unix:", path), kLong));
  listener.Reset();
  EXPECT_TRUE(PortProbe().Refuses(absl::StrCat("unix:", path), kLong));
}

TEST(PortProbeTest, AHostThatIsNotFoundDoesNotRefuse) {
  const PortProbe probe([](const std::string&) { return absl::UnavailableError("no such host"); });
  EXPECT_FALSE(probe.Refuses("server:7000", kLong));
}

// The threads of the lookups outlive the probe, as they do when a name server does not answer.
TEST(PortProbeTest, ALookupThatHangsHoldsNobodyBeyondTheTimeout) {
  const BoundPort bound;
  struct NameServer {
    std::atomic<int> asked{0};
    absl::Notification answers;
    std::atomic<int> answered{0};
  };
  const auto server = std::make_shared<NameServer>();
  auto probe = std::make_unique<PortProbe>([server](const std::string& host) {
    if (host == "hangs") {
      ++server->asked;
      server->answers.WaitForNotification();
      ++server->answered;
    }
    return Loopback();
  });
  const absl::Time begin = MonotonicNow();
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(probe->Refuses(bound.address("hangs"), absl::Milliseconds(20)));
  }
  EXPECT_TRUE(probe->Refuses(bound.address("another"), kLong)) << "other hosts do not wait";
  EXPECT_LT(MonotonicNow() - begin, absl::Seconds(10));
  EXPECT_EQ(server->asked, 1) << "each call began a lookup of its own";
  server->answers.Notify();
  EXPECT_TRUE(probe->Refuses(bound.address("hangs"), kLong)) << "the answer was not waited for";
  probe = nullptr;
  EXPECT_EQ(server->answered, server->asked);
}

TEST(PortProbeTest, DestructionDoesNotWaitForALookup) {
  const auto answers = std::make_shared<absl::Notification>();
  const auto ended = std::make_shared<absl::Notification>();
  {
    const PortProbe probe([answers, ended](const std::string&) {
      answers->WaitForNotification();
      ended->Notify();
      return Loopback();
    });
    EXPECT_FALSE(probe.Refuses("hangs:1", absl::Milliseconds(10)));
  }
  EXPECT_FALSE(ended->HasBeenNotified());
  answers->Notify();
  EXPECT_TRUE(ended->WaitForNotificationWithTimeout(kLong));
}

}  // namespace
}  // namespace tandem::rpc
