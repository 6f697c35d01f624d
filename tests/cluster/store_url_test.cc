// SPDX-License-Identifier: Apache-2.0
#include "cluster/store_url.h"

#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::cluster {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kUrlTimeout = absl::Seconds(30);

// An address of this host at which no other test serves: on a busy machine, a port that one of these tests
// releases would soon be used by another.
constexpr char kOwnHost[] = "127.0.77.1";

// Returns a "host:port" that was free a moment ago.
std::string FreeAddress() {
  auto server = StoreServer::Start(absl::StrCat(kOwnHost, ":0")).value();
  return absl::StrCat(kOwnHost, ":", server->port());
}

TEST(StoreUrlTest, RankZeroServesAndTheOthersComeWhenTheyLike) {
  const std::string url = "tcp://" + FreeAddress();
  std::thread rank1([&] {
    auto store = OpenStoreUrl(url, 1, 2, kUrlTimeout);  // possibly before there is a server
    TANDEM_ASSERT_OK(store);
    EXPECT_EQ((*store)->store()->Get("k", kUrlTimeout).value(), "v");
    EXPECT_EQ((*store)->rank(), 1);
  });
  {
    auto store = OpenStoreUrl(url + "?rank=0&world_size=2", -1, -1, kUrlTimeout);
    TANDEM_EXPECT_OK(store);
    if (store.ok()) {
      EXPECT_EQ((*store)->world_size(), 2);
      TANDEM_EXPECT_OK((*store)->store()->Set("k", "v"));
    }
  }  // serves until rank 1 has gone
  rank1.join();
}

TEST(StoreUrlTest, AWorldOfOneMayLetTheKernelPickThePort) {
  TANDEM_ASSERT_OK_AND_ASSIGN(auto store, OpenStoreUrl("tcp://localhost:0", 0, 1, kUrlTimeout));
  TANDEM_EXPECT_OK(store->store()->Set("k", "v"));
  EXPECT_THAT(OpenStoreUrl("tcp://localhost:0", 0, 2, kUrlTimeout),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("port 0")));
}

TEST(StoreUrlTest, APortInUseIsNamedByRankZeroAndTheOthersAreToldWhatToCheck) {
  TANDEM_ASSERT_OK_AND_ASSIGN(auto other_program,
                              rpc::Server::Start({.listen = absl::StrCat(kOwnHost, ":0")}, {}));
  const std::string port = absl::StrCat(other_program->port());
  const std::string address = absl::StrCat(kOwnHost, ":", port);
  const std::string url = "tcp://" + address;
  EXPECT_THAT(OpenStoreUrl(url, 0, 2, kUrlTimeout),
              StatusIs(absl::StatusCode::kUnavailable, AllOf(HasSubstr(port), HasSubstr("in use"))));
  other_program->Shutdown(absl::ZeroDuration());
  EXPECT_THAT(OpenStoreUrl(url, 1, 2, absl::Milliseconds(300)),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr(address), HasSubstr("port is in use"), HasSubstr("firewall"))));
}

TEST(StoreUrlTest, AServersDeathIsUnavailableWithItsAddress) {
  TANDEM_ASSERT_OK_AND_ASSIGN(auto server, StoreServer::Start(absl::StrCat(kOwnHost, ":0")));
  const std::string address = absl::StrCat(kOwnHost, ":", server->port());
  TANDEM_ASSERT_OK_AND_ASSIGN(auto store, OpenStoreUrl("tcp://" + address, 1, 2, absl::Seconds(4)));
  TANDEM_ASSERT_OK(store->store()->Set("k", "v"));
  server.reset();
  const absl::Time start = absl::Now();
  EXPECT_THAT(store->store()->Add("n", 1), StatusIs(absl::StatusCode::kUnavailable, HasSubstr(address)));
  EXPECT_THAT(store->store()->Get("k", absl::Seconds(1)),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr(address)));
  EXPECT_LT(absl::Now() - start, absl::Seconds(60));
}

TEST(StoreUrlTest, AFileServesAllRanksAndIsGoneAfterThem) {
  testing::TempDir directory;
  const std::string url = "file://" + directory.File("store");
  TANDEM_ASSERT_OK_AND_ASSIGN(auto first, OpenStoreUrl(url, 0, 2, kUrlTimeout));
  TANDEM_ASSERT_OK_AND_ASSIGN(auto second, OpenStoreUrl(url, 1, 2, kUrlTimeout));
  TANDEM_ASSERT_OK(first->store()->Set("k", "v"));
  EXPECT_EQ(second->store()->Get("k", kUrlTimeout).value(), "v");
  first.reset();
  second.reset();
  EXPECT_NE(access(directory.File("store").c_str(), F_OK), 0);
}

TEST(StoreUrlTest, MalformedUrlsAreRefusedWithWhatIsAccepted) {
  const std::pair<const char*, const char*> kBad[] = {
      {"", "unknown form"},           {"http://host:1", "unknown form"},    {"tcp://host", "no host:port"},
      {"tcp://unix:/x", "host:port"}, {"file://relative", "three slashes"}, {"env://x", "nothing may follow"},
      {"tcp://h:1?rang=1", "rang=1"}, {"tcp://h:1?rank=x", "rank=x"},
  };
  for (const auto& [url, says] : kBad) {
    EXPECT_THAT(OpenStoreUrl(url, 0, 1, kUrlTimeout),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(says)))
        << url;
  }
  for (const auto& [rank, size] : {std::pair(-1, 2), std::pair(2, 2), std::pair(0, -1), std::pair(0, 0)}) {
    EXPECT_THAT(OpenStoreUrl("tcp://h:1", rank, size, kUrlTimeout),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("tcp://h:1")));
  }
}

}  // namespace
}  // namespace tandem::cluster
