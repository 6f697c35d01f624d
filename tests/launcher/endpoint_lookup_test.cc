// SPDX-License-Identifier: Apache-2.0
#include "launcher/endpoint_lookup.h"

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/status_matchers.h"

namespace tandem::launcher {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

// A name server that learns names while it is asked.
class EndpointLookupTest : public ::testing::Test {
 protected:
  EndpointLookup Lookup() {
    return {.find = [this](const std::string& address) -> absl::StatusOr<std::string> {
              ++asked_;
              const auto known = known_from_.find(address);
              if (known != known_from_.end() && asked_ >= known->second) return "10.0.0.7";
              return absl::UnavailableError(absl::StrCat("cannot find host '", address, "'"));
            },
            .pause = [this](absl::Duration) { return ++pauses_ != stop_at_; },
            .say = [this](const std::string& text) { said_.push_back(text); }};
  }
  std::map<std::string, int> known_from_;  // the number of the question from which on a name is known
  int asked_ = 0, pauses_ = 0, stop_at_ = -1;
  std::vector<std::string> said_;
};

TEST_F(EndpointLookupTest, ANameThatIsKnownIsAskedForOnce) {
  known_from_ = {{"node0:1", 1}};
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string here, FindLocalAddress("node0:1", absl::Hours(1), Lookup()));
  EXPECT_EQ(here, "10.0.0.7");
  EXPECT_EQ(asked_, 1);
  EXPECT_TRUE(said_.empty());
}

TEST_F(EndpointLookupTest, ANameThatAppearsLaterIsFound) {
  known_from_ = {{"node0:1", 6}};
  TANDEM_ASSERT_OK(FindLocalAddress("node0:1", absl::Hours(1), Lookup()));
  EXPECT_EQ(asked_, 6);
  EXPECT_EQ(pauses_, 5);
  ASSERT_EQ(said_.size(), 1u);
  EXPECT_THAT(said_[0], AllOf(HasSubstr("cannot find host 'node0:1'"), HasSubstr("looking again for 1h")));
}

TEST_F(EndpointLookupTest, OneKnownMemberOfEtcdIsEnough) {
  known_from_ = {{"etcd1:2379", 1}};
  TANDEM_ASSERT_OK(FindLocalAddress("etcd0:2379,etcd1:2379", absl::Hours(1), Lookup()));
  EXPECT_EQ(pauses_, 0);
}

TEST_F(EndpointLookupTest, AfterTheTimeoutTheNameIsTold) {
  EXPECT_THAT(FindLocalAddress("node0:1", absl::Milliseconds(1), Lookup()),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("cannot find host 'node0:1', for 1ms"),
                             HasSubstr("--rdzv-endpoint node0:1"), HasSubstr("join_timeout"))));
}

TEST_F(EndpointLookupTest, TheWaitEndsWhenTheCallerWishes) {
  stop_at_ = 2;
  EXPECT_THAT(FindLocalAddress("node0:1", absl::Hours(1), Lookup()),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("node0:1")));
  EXPECT_EQ(asked_, 2);
}

TEST_F(EndpointLookupTest, AMalformedAddressIsRefusedAtOnce) {
  EXPECT_THAT(FindLocalAddress("node0:x", absl::Hours(1), Lookup()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--rdzv-endpoint")));
  EXPECT_EQ(asked_, 0);
}

}  // namespace
}  // namespace tandem::launcher
