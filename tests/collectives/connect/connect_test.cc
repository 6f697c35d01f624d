// SPDX-License-Identifier: Apache-2.0
// All ranks choose the same backend, or get the reason why they cannot.

#include "collectives/connect/connect.h"

#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "cluster/store/memory_store.h"
#include "tests/testing/status_matchers.h"

namespace tandem::collectives {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

// A connected backend that supports no operation.
class IdleBackend : public Backend {
 public:
  explicit IdleBackend(std::string name) : name_(std::move(name)) {}
  absl::string_view name() const override { return name_; }
  absl::Status Supports(const Operation&) const override { return absl::OkStatus(); }
  absl::Status Run(const Operation&) override { return absl::OkStatus(); }
  void StartPointToPoint(const Operation&, Done done) override { done(0); }
  void Abort(const absl::Status&) override {}

 private:
  const std::string name_;
};

using Refusal = std::function<absl::Status(int rank)>;

BackendFactory Idle(std::string name, Refusal viable = nullptr, Refusal make = nullptr) {
  BackendFactory factory;
  factory.name = name;
  if (viable) factory.viable = [viable](const BackendOptions& o) { return viable(o.rank); };
  factory.make = [name, make](const BackendOptions& o) -> absl::StatusOr<std::unique_ptr<Backend>> {
    if (make) TANDEM_RETURN_IF_ERROR(make(o.rank));
    return std::make_unique<IdleBackend>(name);
  };
  return factory;
}

Refusal RankOneRefuses(const std::string& why) {
  return [why](int rank) { return rank == 1 ? absl::FailedPreconditionError(why) : absl::OkStatus(); };
}

// Returns the result of each of three ranks: the backend's name, or the error.
std::vector<absl::StatusOr<std::string>> ConnectThree(std::vector<BackendFactory> factories,
                                                      const std::string& backend) {
  cluster::MemoryStore store;
  std::vector<absl::StatusOr<std::string>> got(3, absl::UnknownError("did not run"));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      GroupConnectOptions options;
      options.group = "g";
      options.rank = rank;
      options.world_size = 3;
      options.backend = backend;
      options.timeout = absl::Seconds(30);
      options.extra_backends = factories;
      auto connection = Connect(&store, options);
      if (connection.ok()) {
        ASSERT_EQ(connection->devices.size(), 1u);
        got[rank] = connection->devices[0].backend;
      } else {
        got[rank] = connection.status();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return got;
}

TEST(ConnectTest, OneHostSharesItsMemory) {
  for (const auto& got : ConnectThree({Idle("shm"), Idle("tcp")}, "auto")) {
    TANDEM_ASSERT_OK(got);
    EXPECT_EQ(*got, "shm");
  }
}

TEST(ConnectTest, WhereOneRankCannotShareMemoryAllTakeTheNextBackendTogether) {
  for (const auto& got : ConnectThree({Idle("shm", RankOneRefuses("not here")), Idle("tcp")}, "auto")) {
    TANDEM_ASSERT_OK(got);
    EXPECT_EQ(*got, "tcp");
  }
  for (const auto& got :
       ConnectThree({Idle("shm", nullptr, RankOneRefuses("too small")), Idle("tcp")}, "auto")) {
    TANDEM_ASSERT_OK(got);
    EXPECT_EQ(*got, "tcp");
  }
}

TEST(ConnectTest, ANamedBackendIsNotReplacedAndAllRanksGetTheReason) {
  for (const auto& got : ConnectThree({Idle("shm", RankOneRefuses("not here")), Idle("tcp")}, "shm")) {
    EXPECT_THAT(got, StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("rank 1: not here")));
  }
  const auto got = ConnectThree({Idle("shm", nullptr, RankOneRefuses("too small"))}, "shm");
  EXPECT_THAT(got[0], StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("rank 1: too small")));
  EXPECT_THAT(got[1], StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("too small")));
}

TEST(ConnectTest, TheReasonsOfAllThatFailedAreKept) {
  for (const auto& got : ConnectThree(
           {Idle("shm", RankOneRefuses("no memory")), Idle("tcp", RankOneRefuses("no net"))}, "auto")) {
    EXPECT_THAT(got, StatusIs(absl::StatusCode::kFailedPrecondition,
                              AllOf(HasSubstr("no memory"), HasSubstr("no net"))));
  }
}

TEST(ConnectTest, AWorldOfOneNeedsNoStore) {
  GroupConnectOptions options;
  options.group = "g";
  options.timeout = absl::Seconds(1);
  auto alone = Connect(nullptr, options);
  TANDEM_ASSERT_OK(alone);
  ASSERT_EQ(alone->devices.size(), 1u);
  EXPECT_EQ(alone->devices[0].backend, "solo");
  EXPECT_EQ(alone->peers.size(), 1u);
  options.backend = "smoke";
  EXPECT_THAT(Connect(nullptr, options), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("smoke")));
}

}  // namespace
}  // namespace tandem::collectives
