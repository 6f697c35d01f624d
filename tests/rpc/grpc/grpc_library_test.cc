// SPDX-License-Identifier: Apache-2.0
// Tests what channels and servers do in a forked process.

#include <sys/wait.h>
#include <unistd.h>

#include <memory>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rpc/channel.h"
#include "rpc/connect.h"
#include "rpc/server.h"
#include "tests/rpc/stream_peers.h"
#include "tests/testing/status_matchers.h"

namespace tandem::rpc {
namespace {

using testing::PlainEchoService;

bool SaysThatTheProcessWasForked(const absl::Status& status) {
  return absl::IsFailedPrecondition(status) && absl::StrContains(status.message(), "forked from process");
}

TEST(GrpcLibraryTest, AForkedProcessIsToldAtOnceThatGrpcDoesNotWorkThere) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Server> server, Server::Start({}, {PlainEchoService()}));
  const std::string target = absl::StrCat("127.0.0.1:", server->port());
  TANDEM_ASSERT_OK(rpc::Connect(target).status());
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::alarm(60);  // instead of a hang
    const bool refused = SaysThatTheProcessWasForked(rpc::Connect(target).status()) &&
                         SaysThatTheProcessWasForked(Server::Start({}, {PlainEchoService()}).status());
    ::_exit(refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  TANDEM_EXPECT_OK(rpc::Connect(target).status());
}

}  // namespace
}  // namespace tandem::rpc
