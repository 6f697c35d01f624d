// SPDX-License-Identifier: Apache-2.0
#include "cli/monitor/metrics_server.h"

#include <array>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cli/monitor/http_client.h"
#include "tests/testing/status_matchers.h"

namespace tandem::cli {
namespace {

using ::testing::HasSubstr;

TEST(MetricsServerTest, WhatGathersTheFiguresHasTheStackOfAnyThread) {
  const auto source = [] {
    std::array<volatile char, 1 << 20> stack;  // a web server's thread has a tenth of it
    for (size_t i = 0; i < stack.size(); i += 1024) stack[i] = 1;
    ServerMetrics figures;
    figures.server.set_open_sockets(stack[0]);
    return figures;
  };
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto server, MetricsServer::Start("127.0.0.1", 0, source));
  EXPECT_THAT(HttpGet(server->port(), "/metrics"), HasSubstr("tandem_server_open_sockets 1"));
}

}  // namespace
}  // namespace tandem::cli
