// SPDX-License-Identifier: Apache-2.0
#include "rpc/transport/traced_call.h"

#include <memory>
#include <string>
#include <vector>

#include "base/trace/recorder.h"
#include "rpc/connect.h"
#include "rpc/server.h"
#include "tests/rpc/echo_service.h"
#include "tests/testing/status_matchers.h"

namespace tandem::rpc {
namespace {

using testing::kEcho;

TEST(CallFlow, DependsOnTheBytesAndNotOnTheirSlices) {
  std::string text(5000, 'a');
  Bytes chunks;
  for (size_t i = 0; i < text.size(); i += 7) chunks.Append(Slice::FromString(text.substr(i, 7)));
  EXPECT_EQ(CallFlow(kEcho, chunks), CallFlow(kEcho, Bytes(text)));
  EXPECT_NE(CallFlow(kEcho, chunks), CallFlow("/tandem.v1.Echo/Other", chunks));
  text[100] = 'b';
  EXPECT_NE(CallFlow(kEcho, chunks), CallFlow(kEcho, Bytes(text)));
  EXPECT_NE(CallFlow(kEcho, Bytes(text)), CallFlow(kEcho, Bytes(text + "a")));
  EXPECT_NE(CallFlow(kEcho, Bytes()), 0u);
}

struct Half {
  std::string category;
  trace::Event event;
};

std::vector<Half> CallsOf(const trace::Recording& recording) {
  std::vector<Half> halves;
  for (const auto& thread : recording.threads) {
    for (const auto& event : thread.events) {
      if (std::string(event.kind->name) == "tandem.v1.Echo/Echo")
        halves.push_back({event.kind->category, event});
    }
  }
  return halves;
}

// Over each transport, the client's event encloses the server's, and both have the same flow.
TEST(TracedCall, BothHalvesOfACallAreRecordedAndJoined) {
  for (const std::string transport : {"grpc", "auto"}) {
    SCOPED_TRACE(transport);
    trace::Recorder recorder;
    TANDEM_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Server> server,
                                Server::Start({.transport = transport}, {testing::PlainEchoService()}));
    TANDEM_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Channel> channel,
                                Connect("127.0.0.1:" + std::to_string(server->port())));
    const auto echo = [&](const std::string& text) {
      v1::EchoMessage request, response;
      request.set_text(text);
      return CallProto(*channel, kEcho, request, &response, {});
    };
    TANDEM_ASSERT_OK(echo("before"));
    TANDEM_ASSERT_OK(recorder.Start());
    TANDEM_ASSERT_OK(echo("first"));
    TANDEM_ASSERT_OK(echo("second"));
    recorder.Stop();
    TANDEM_ASSERT_OK(echo("after"));
    const std::vector<Half> halves = CallsOf(recorder.Collect(1000));
    ASSERT_EQ(halves.size(), 4u);
    int joined = 0;
    for (const Half& call : halves) {
      if (call.category != "call") continue;
      EXPECT_EQ(call.event.flow.end, trace::Flow::End::kSends);
      for (const Half& serve : halves) {
        if (serve.category != "serve" || serve.event.flow.id != call.event.flow.id) continue;
        ++joined;
        EXPECT_EQ(serve.event.flow.end, trace::Flow::End::kReceives);
        EXPECT_LE(call.event.begin_ns, serve.event.begin_ns);
        EXPECT_LE(serve.event.end_ns, call.event.end_ns);
        EXPECT_EQ(serve.event.arguments[0], call.event.arguments[0]);
      }
    }
    EXPECT_EQ(joined, 2);
  }
}

TEST(TracedCall, FailedCallsAreRecordedToo) {
  trace::Recorder recorder;
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Channel> channel, ConnectGrpc("127.0.0.1:1"));
  TANDEM_ASSERT_OK(recorder.Start());
  EXPECT_FALSE(channel->Call(kEcho, Bytes(), {.timeout = absl::Seconds(5)}).ok());
  recorder.Stop();
  EXPECT_EQ(CallsOf(recorder.Collect(1000)).size(), 1u);
}

}  // namespace
}  // namespace tandem::rpc
