// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/left_workers.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "cluster/join.h"
#include "cluster/membership/membership.h"
#include "cluster/store/store_server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rpc/channel.h"
#include "tests/ps/server/count_pushes.h"
#include "tests/ps/server/driver.h"
#include "tests/testing/status_matchers.h"

namespace tandem::cli {
namespace {

using ps::testing::CountPush;
using tandem::testing::IsOk;
using tandem::testing::StatusIs;

TEST(LeftWorkersTest, AServerHearsThatAWorkerHasLeftAndThatItIsBack) {
  const absl::Time end = MonotonicNow() + absl::Minutes(2);
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto store, cluster::StoreServer::Start("127.0.0.1:0"));
  const auto beat = [&](bool leaving) {
    TANDEM_EXPECT_OK(store->membership()->Heartbeat("worker/1", absl::Hours(1), leaving));
  };
  ps::testing::Driver server;
  TANDEM_ASSERT_OK(server.CreateTable(ps::testing::CountTable(2, ps::Sync())));
  TANDEM_ASSERT_OK(server.Push({.worker = 0, .step = 0}, {CountPush(0, 0)}));
  const auto pull = [&] { return server.StartPull(0, 1, {{"user", {ps::testing::kShared}}}, false, end); };
  TANDEM_ASSERT_OK_AND_ASSIGN(std::shared_ptr<rpc::Channel> channel,
                              cluster::ConnectStore(absl::StrCat("127.0.0.1:", store->port())));
  const LeftWorkers watch(&server.server(), std::move(channel));
  beat(/*leaving=*/true);
  EXPECT_THAT(pull()->Wait().status(), StatusIs(absl::StatusCode::kFailedPrecondition));
  beat(/*leaving=*/false);
  auto waiting = pull();
  while (server.server().waiting_calls() == 0 && MonotonicNow() < end) waiting = pull();
  TANDEM_ASSERT_OK(server.Push({.worker = 1, .step = 0}, {CountPush(1, 0)}));
  EXPECT_THAT(waiting->Wait().status(), IsOk());
}

}  // namespace
}  // namespace tandem::cli
