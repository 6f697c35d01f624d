// SPDX-License-Identifier: Apache-2.0
#include "rpc/address.h"

#include <fcntl.h>
#include <netdb.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "tests/testing/status_matchers.h"

namespace tandem::rpc {
namespace {

using ::tandem::testing::IsOk;
using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(AddressTest, AcceptsHostsNumbersBracketsAndUnixPaths) {
  const struct {
    const char* text;
    const char* host;
    int port;
    const char* path;
  } kCases[] = {
      {"127.0.0.1:0", "127.0.0.1", 0, ""},         {"ps-0.tandem_net:65535", "ps-0.tandem_net", 65535, ""},
      {"localhost:29500", "localhost", 29500, ""}, {"[::1]:80", "::1", 80, ""},
      {"unix:/tmp/a b", "", 0, "/tmp/a b"},
  };
  for (const auto& c : kCases) {
    TANDEM_ASSERT_OK_AND_ASSIGN(Address address, ParseAddress(c.text));
    EXPECT_EQ(address.host, c.host) << c.text;
    EXPECT_EQ(address.port, c.port) << c.text;
    EXPECT_EQ(address.unix_path, c.path) << c.text;
  }
}

TEST(AddressTest, SaysWhatIsWrongWithAnAddress) {
  const struct {
    std::string text;
    const char* why;
  } kCases[] = {
      {"", "no port"},
      {"localhost", "no port"},
      {":80", "no host"},
      {"host:", "is no port"},
      {"host:port", "is no port"},
      {"host:-1", "is no port"},
      {"host:65536", "is no port"},
      {"host:99999999999", "is no port"},
      {"::1:80", "needs brackets"},
      {"[::1:80", "bracket is not closed"},
      {"ho st:80", "cannot be part of a host"},
      {"http://host:80", "brackets"},
      {"unix:relative", "absolute path"},
      {"unix:/" + std::string(200, 'x'), "a unix socket's may have"},
  };
  for (const auto& c : kCases) {
    EXPECT_THAT(ParseAddress(c.text), StatusIs(absl::StatusCode::kInvalidArgument,
                                               AllOf(HasSubstr(c.why), HasSubstr("expected host:port"))))
        << c.text;
  }
}

TEST(AddressTest, AHostOfAnotherMachineCannotBeBound) {
  TANDEM_ASSERT_OK_AND_ASSIGN(Address here, ParseAddress("127.0.0.1:0"));
  EXPECT_THAT(CheckBindable(here, "127.0.0.1:0"), IsOk());
  // 192.0.2.0/24 is reserved for documentation: no machine has such an address.
  TANDEM_ASSERT_OK_AND_ASSIGN(Address elsewhere, ParseAddress("192.0.2.1:0"));
  EXPECT_THAT(CheckBindable(elsewhere, "192.0.2.1:0"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no address of this machine")));
  TANDEM_ASSERT_OK_AND_ASSIGN(Address nowhere, ParseAddress("unix:/no/such/directory/socket"));
  EXPECT_THAT(CheckBindable(nowhere, "unix:/no/such/directory/socket"),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("/no/such/directory/")));
}

// Runs in a process of its own, in a mount and a network namespace: hides /etc/hosts, so that no lookup finds
// "localhost". Exits with 0 if the name still works, with 2 if namespaces are not permitted here.
[[noreturn]] void UseLocalhostWithoutHostsFile() {
  if (unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWNET) != 0 ||
      mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      mount("/dev/null", "/etc/hosts", nullptr, MS_BIND, nullptr) != 0) {
    _exit(2);
  }
  addrinfo* found = nullptr;
  if (getaddrinfo("localhost", nullptr, nullptr, &found) == 0)
    _exit(2);  // another service of nsswitch.conf knows it
  const absl::StatusOr<Address> address = ParseAddress("localhost:80");
  if (ResolvableHost("localhost") != "127.0.0.1") _exit(3);
  if (ResolvableAddress(*address, "localhost:80") != "127.0.0.1:80") _exit(4);
  if (ResolvableHost("elsewhere") != "elsewhere") _exit(5);
  _exit(0);
}

TEST(AddressDeathTest, LocalhostIsTheLoopbackAddressWhereNoLookupFindsIt) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(
      UseLocalhostWithoutHostsFile(),
      [](int status) {
        if (WIFEXITED(status) && WEXITSTATUS(status) == 2) {
          std::fputs("namespaces are not permitted here: not checked\n", stderr);
        }
        return WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 2);
      },
      "");
}

TEST(AddressTest, OtherHostsAndUnixPathsAreLookedUpAsTheyAre) {
  EXPECT_EQ(ResolvableHost("10.0.0.1"), "10.0.0.1");
  TANDEM_ASSERT_OK_AND_ASSIGN(const Address unix, ParseAddress("unix:/tmp/a"));
  EXPECT_EQ(ResolvableAddress(unix, "unix:/tmp/a"), "unix:/tmp/a");
  TANDEM_ASSERT_OK_AND_ASSIGN(const Address ipv6, ParseAddress("[::1]:80"));
  EXPECT_EQ(ResolvableAddress(ipv6, "[::1]:80"), "[::1]:80");
}

}  // namespace
}  // namespace tandem::rpc
