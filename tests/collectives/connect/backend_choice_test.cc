// SPDX-License-Identifier: Apache-2.0
#include "collectives/connect/backend_choice.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/status_matchers.h"

namespace tandem::collectives {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

BackendFactory Named(std::string name, Device::Kind device = Device::Kind::kCpu) {
  BackendFactory factory;
  factory.name = std::move(name);
  factory.device = device;
  return factory;
}

const std::vector<BackendFactory>& Factories() {
  static const auto& factories = *new std::vector<BackendFactory>{
      Named("shm"), Named("tcp"), Named("shm+tcp"), Named("nccl", Device::Kind::kCuda)};
  return factories;
}

// "cpu:shm+tcp cuda:nccl", or the error.
absl::StatusOr<std::string> Parsed(absl::string_view text) {
  auto requests = ParseBackends(text, Factories());
  if (!requests.ok()) return requests.status();
  std::string result;
  for (const BackendRequest& one : *requests) {
    absl::StrAppend(&result, result.empty() ? "" : " ",
                    one.device == Device::Kind::kCpu ? "cpu:" : "cuda:", one.name);
  }
  return result;
}

TEST(BackendChoiceTest, ANameServesTheDeviceOfItsFactory) {
  EXPECT_EQ(*Parsed("auto"), "cpu:auto");
  EXPECT_EQ(*Parsed("shm+tcp"), "cpu:shm+tcp");
  EXPECT_EQ(*Parsed("nccl"), "cuda:nccl");
  EXPECT_EQ(*Parsed("cuda:nccl, cpu:auto"), "cpu:auto cuda:nccl");
  EXPECT_EQ(*Parsed("cpu:tcp,cuda:auto"), "cpu:tcp cuda:nccl");
}

TEST(BackendChoiceTest, AnUnknownNameIsRefusedWithTheKnownOnes) {
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(Parsed("tcpp"), StatusIs(kInvalid, AllOf(HasSubstr("no backend 'tcpp'"), HasSubstr("'tcp'"),
                                                       HasSubstr("shm+tcp"), HasSubstr("auto"))));
  EXPECT_THAT(Parsed(""), StatusIs(kInvalid, HasSubstr("no backend ''")));
  EXPECT_THAT(Parsed("tpu:tcp"), StatusIs(kInvalid, HasSubstr("no device 'tpu'")));
  EXPECT_THAT(Parsed("cuda:tcp"), StatusIs(kInvalid, HasSubstr("serves cpu tensors, not cuda ones")));
  EXPECT_THAT(Parsed("shm,tcp"), StatusIs(kInvalid, HasSubstr("names two for cpu tensors")));
}

TEST(BackendChoiceTest, AMissingBackendIsRefusedWithThePackageToInstall) {
  EXPECT_THAT(Parsed("mpi"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("this build has no backend 'mpi'"), HasSubstr("libopenmpi-dev"))));
  EXPECT_THAT(Parsed("gloo"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("this build has no backend 'gloo'"), HasSubstr("libgloo-dev"))));
}

TEST(BackendChoiceTest, AutoDependsOnWhichRanksShareAHost) {
  auto on = [](const std::vector<std::string>& hosts) {
    std::vector<RankEndpoint> peers;
    for (const std::string& host : hosts) peers.push_back({host, "10.0.0.1", 1});
    return AutoCandidates(peers);
  };
  EXPECT_THAT(on({"a", "a", "a"}), ElementsAre("shm", "tcp"));
  EXPECT_THAT(on({"a", "b", "c"}), ElementsAre("tcp"));
  EXPECT_THAT(on({"a", "b", "a"}), ElementsAre("shm+tcp", "tcp"));
}

}  // namespace
}  // namespace tandem::collectives
