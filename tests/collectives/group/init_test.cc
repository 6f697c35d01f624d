// SPDX-License-Identifier: Apache-2.0
// Arguments that InitProcessGroup refuses, and options that it takes from the environment.

#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cluster/store/memory_store.h"
#include "collectives/process_group.h"
#include "tests/collectives/conformance/reference_backend.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::collectives {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

absl::Status With(const std::function<void(ProcessGroupOptions*)>& change) {
  cluster::MemoryStore store;
  ProcessGroupOptions options;
  options.rank = 0;
  options.world_size = 1;
  change(&options);
  return InitProcessGroup(&store, options).status();
}

TEST(InitProcessGroupTest, InvalidOptionsAreRefused) {
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  TANDEM_EXPECT_OK(With([](auto*) {}));
  EXPECT_THAT(With([](auto* o) { o->rank = 1; }), StatusIs(kInvalid, HasSubstr("rank 1 of a world of 1")));
  EXPECT_THAT(With([](auto* o) { o->rank = -1; }), StatusIs(kInvalid));
  EXPECT_THAT(With([](auto* o) { o->world_size = 0; }), StatusIs(kInvalid));
  EXPECT_THAT(With([](auto* o) { o->name = ""; }), StatusIs(kInvalid));
  EXPECT_THAT(With([](auto* o) { o->timeout = absl::ZeroDuration(); }), StatusIs(kInvalid));
  EXPECT_THAT(With([](auto* o) { o->backend = "glo"; }),
              StatusIs(kInvalid, AllOf(HasSubstr("process group 'default'"), HasSubstr("no backend 'glo'"),
                                       HasSubstr("tcp"))));
  EXPECT_THAT(With([](auto* o) { o->host = "two\nlines"; }), StatusIs(kInvalid));
  EXPECT_THAT(With([](auto* o) {
                o->world_size = 2;
                o->interface_address = "eth99";
              }),
              StatusIs(kInvalid, HasSubstr("eth99")));
  ProcessGroupOptions two;
  two.rank = 0;
  two.world_size = 2;
  EXPECT_THAT(InitProcessGroup(nullptr, two), StatusIs(kInvalid, HasSubstr("no store")));
}

TEST(InitProcessGroupTest, ARankThatNeverComesIsNamedByItsGroup) {
  EXPECT_THAT(
      With([](auto* o) {
        o->world_size = 2;
        o->name = "dense";
        o->timeout = absl::Milliseconds(100);
      }),
      StatusIs(absl::StatusCode::kDeadlineExceeded, AllOf(HasSubstr("'dense'"), HasSubstr("rank 1 of 2"))));
}

TEST(InitProcessGroupTest, TheEnvironmentFillsInWhatTheProgramLeavesOpen) {
  ASSERT_EQ(setenv("TANDEM_BACKEND", "smoke", 1), 0);
  EXPECT_THAT(With([](auto*) {}), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("smoke")));
  TANDEM_EXPECT_OK(With([](auto* o) { o->backend = "auto"; }));
  ASSERT_EQ(unsetenv("TANDEM_BACKEND"), 0);
  ASSERT_EQ(setenv("TANDEM_DEBUG", "detial", 1), 0);
  EXPECT_THAT(With([](auto*) {}), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("DETAIL")));
  TANDEM_EXPECT_OK(With([](auto* o) { o->debug = DebugLevel::kOff; }));
  ASSERT_EQ(setenv("TANDEM_DEBUG", "detail", 1), 0);
  TANDEM_EXPECT_OK(With([](auto*) {}));
  ASSERT_EQ(unsetenv("TANDEM_DEBUG"), 0);
}

TEST(InitProcessGroupTest, AFileStoreIsEnoughToConnect) {
  testing::TempDir dir;
  ReferenceWorld world;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      ProcessGroupOptions options;
      options.init_method = absl::StrCat("file://", dir.File("store"));
      options.rank = rank;
      options.world_size = 2;
      options.backend = "reference";
      options.extra_backends = {world.factory()};
      TANDEM_ASSERT_OK_AND_ASSIGN(auto group, InitProcessGroup(options));
      EXPECT_EQ(group->backend(), "reference");
      EXPECT_EQ(group->backend(Device::Cuda(0)), "");
      // A subgroup keeps the store when its parent is gone.
      TANDEM_ASSERT_OK_AND_ASSIGN(auto part, group->NewGroup({1, 0}));
      group.reset();
      TANDEM_EXPECT_OK(part->Barrier().Wait());
      TANDEM_EXPECT_OK(part->MonitoredBarrier(absl::Seconds(30)));
      EXPECT_EQ(part->rank(), 1 - rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace tandem::collectives
