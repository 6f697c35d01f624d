// SPDX-License-Identifier: Apache-2.0
// Tests the server end of a connection whose client breaks the rules.

#include "rpc/shm/server_connection.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/rpc/echo_service.h"
#include "tests/rpc/shm/link_pair.h"
#include "tests/testing/status_matchers.h"

namespace tandem::rpc::shm {
namespace {

using rpc::testing::DeferredCalls;
using rpc::testing::DeferringService;
using testing::LinkPair;
using testing::Request;

class ServerConnectionTest : public ::testing::Test {
 protected:
  ~ServerConnectionTest() override { connection->Close(absl::CancelledError("the test is over")); }

  void Send(uint64_t call, const std::string& method) {
    Message request = Request(call, Bytes(std::string("question")));
    request.text = method;
    pair.client->Send(std::move(request));
    connection->Serve();
  }
  // Returns the code of the response that has arrived, or nullopt if there is none.
  std::optional<absl::StatusCode> Answered(uint64_t call) {
    Message response;
    if (!pair.client->Receive(&response)) return std::nullopt;
    EXPECT_EQ(response.call, call);
    return response.code;
  }

  DeferredCalls deferred_calls;
  LinkPair pair;
  std::shared_ptr<ServerConnection> connection = std::make_shared<ServerConnection>(
      pair.server, Caller(),
      std::make_shared<MethodTable>(std::vector<Service>{DeferringService(&deferred_calls)}),
      ServerLimits{.max_message_bytes = 1 << 20, .max_calls = 2}, std::make_shared<Closing>());
};

TEST_F(ServerConnectionTest, ARefusalMakesNoRoomForOtherCalls) {
  Send(1, rpc::testing::kEcho);
  Send(2, rpc::testing::kEcho);
  EXPECT_EQ(Answered(1), std::nullopt);
  Send(1, "/there.is/None");
  EXPECT_EQ(Answered(1), absl::StatusCode::kUnimplemented);
  Send(2, rpc::testing::kEcho);
  EXPECT_EQ(Answered(2), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(connection->unfinished(), 2);
  for (int i = 0; i < 2; ++i) deferred_calls.Take()->Finish(Bytes());
  EXPECT_EQ(connection->unfinished(), 0);
  EXPECT_EQ(Answered(1), absl::StatusCode::kOk);
  Send(3, rpc::testing::kEcho);
  EXPECT_EQ(connection->unfinished(), 1);
}

TEST_F(ServerConnectionTest, TwoCallsOfOneNumberEndTheConnection) {
  Send(1, rpc::testing::kEcho);
  Send(1, rpc::testing::kEcho);
  EXPECT_TRUE(pair.server->broken());
}

}  // namespace
}  // namespace tandem::rpc::shm
