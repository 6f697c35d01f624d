// SPDX-License-Identifier: Apache-2.0
#include "rpc/network.h"

#include <unistd.h>

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/testing/status_matchers.h"

namespace tandem::rpc {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(NetworkTest, TheLocalHostIsReachedFromItself) {
  EXPECT_EQ(LocalAddressFor("127.0.0.1:29500").value(), "127.0.0.1");
  EXPECT_EQ(LocalAddressFor("").value(), "127.0.0.1");
  EXPECT_EQ(LocalAddressFor("loopback").value(), "127.0.0.1");
  EXPECT_EQ(LocalAddressFor("unix:/tmp/s:1").value(), "127.0.0.1");
}

TEST(NetworkTest, AProcessListensBesideAStoreWithAUnixSocketElseWhereTheStoreIsReached) {
  EXPECT_EQ(ListenBeside("unix:/run/t/store-0", "worker/3")->listen, "unix:/run/t/worker-3");
  EXPECT_EQ(ListenBeside("127.0.0.1:29500", "worker/3")->listen, "127.0.0.1:0");
  EXPECT_EQ(ListenBeside("", "worker/3")->listen, "127.0.0.1:0");
}

TEST(NetworkTest, AHostThatCannotBeFoundIsNamed) {
  EXPECT_THAT(LocalAddressFor("no-such-host.invalid:1"),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("no-such-host.invalid")));
}

TEST(NetworkTest, AnInterfaceIsMeantByNameOrAddress) {
  EXPECT_EQ(ResolveLocalAddress("lo").value(), "127.0.0.1");
  EXPECT_EQ(ResolveLocalAddress("127.0.0.1").value(), "127.0.0.1");
  EXPECT_EQ(ResolveLocalAddress("127.0.0.7").value(), "127.0.0.7");
}

TEST(NetworkTest, AnUnknownInterfaceIsAnsweredWithTheCandidates) {
  EXPECT_THAT(ResolveLocalAddress("eth99"), StatusIs(absl::StatusCode::kInvalidArgument,
                                                     AllOf(HasSubstr("eth99"), HasSubstr("lo (127.0.0.1)"))));
}

TEST(NetworkTest, AServerListensAtTheAddressThatOthersAreTold) {
  EXPECT_EQ(ListenAddressFor("127.0.0.1", 0), "127.0.0.1:0");
  EXPECT_EQ(ListenAddressFor("localhost", 7), "127.0.0.1:7");
  EXPECT_EQ(ListenAddressFor("::1", 7), "[::1]:7");
  EXPECT_EQ(ListenAddressFor("192.0.2.1", 7), "0.0.0.0:7");  // not of this machine
  EXPECT_EQ(ListenAddressFor("no-such-host.invalid", 7), "0.0.0.0:7");
  // The address by which this machine would reach others, if it has a network.
  const absl::StatusOr<std::string> own = LocalAddressFor("192.0.2.1:9");
  if (own.ok() && !absl::StrContains(*own, ':')) {
    EXPECT_EQ(ListenAddressFor(*own, 7), *own + ":7");
  }
}

TEST(NetworkTest, AServerIsAdvertisedUnderItsOwnHostOrAnother) {
  EXPECT_EQ(AdvertisedAddress("127.0.0.1:0", "", 7).value(), "127.0.0.1:7");
  EXPECT_EQ(AdvertisedAddress("[::1]:0", "", 7).value(), "[::1]:7");
  EXPECT_EQ(AdvertisedAddress("0.0.0.0:7", "replay0", 7).value(), "replay0:7");
  EXPECT_EQ(AdvertisedAddress("0.0.0.0:7", "gateway:30007", 7).value(), "gateway:30007");
  EXPECT_EQ(AdvertisedAddress("unix:/run/replay", "", 0).value(), "unix:/run/replay");
}

TEST(NetworkTest, AServerOnAllInterfacesIsAdvertisedUnderTheNameOfItsMachine) {
  char name[256] = {};
  ASSERT_EQ(::gethostname(name, sizeof(name) - 1), 0);
  EXPECT_EQ(AdvertisedAddress("0.0.0.0:0", "", 7).value(), absl::StrCat(name, ":7"));
  EXPECT_EQ(AdvertisedAddress("[::]:0", "", 7).value(), absl::StrCat(name, ":7"));
}

TEST(NetworkTest, AnAddressThatDoesNotParseIsNamedByItsFlag) {
  EXPECT_THAT(AdvertisedAddress("7500", "", 7),
              StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr("--listen"), HasSubstr("7500"))));
  EXPECT_THAT(AdvertisedAddress("0.0.0.0:7", "replay0:port", 7),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("--advertise"), HasSubstr("replay0:port"))));
}

TEST(NetworkTest, OnlyTheMachineItselfIsBehindALoopbackHost) {
  for (const char* host : {"127.0.0.1", "127.0.1.1", "::1", "localhost"}) {
    EXPECT_TRUE(IsLoopbackHost(host)) << host;
  }
  for (const char* host : {"", "0.0.0.0", "10.0.0.127", "128.0.0.1", "::", "fe80::1", "localhost.example"}) {
    EXPECT_FALSE(IsLoopbackHost(host)) << host;
  }
}

}  // namespace
}  // namespace tandem::rpc
