// SPDX-License-Identifier: Apache-2.0
#include "launcher/rendezvous_options.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "tests/testing/status_matchers.h"

namespace tandem::launcher {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

TEST(RendezvousOptionsTest, NodesAreANumberOrARange) {
  int least = 0, most = 0;
  TANDEM_ASSERT_OK(ParseNodes("3", &least, &most));
  EXPECT_EQ(least, 3);
  EXPECT_EQ(most, 3);
  TANDEM_ASSERT_OK(ParseNodes("2:8", &least, &most));
  EXPECT_EQ(least, 2);
  EXPECT_EQ(most, 8);
  for (const char* text : {"", "x", "0", "3:2", "1:2:3", ":", "1:", "99999"}) {
    EXPECT_THAT(ParseNodes(text, &least, &most),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(absl::StrCat("'", text, "'"))));
  }
}

TEST(RendezvousOptionsTest, TorchrunsConfigurationIsRead) {
  RendezvousHandlerOptions options;
  TANDEM_ASSERT_OK(ReadRendezvousConf(
      "join_timeout=60,last_call_timeout=2,close_timeout=3,keep_alive_interval=2,keep_alive_max_attempt=4,"
      "is_host=true,store_type=tcp,read_timeout=9,rank=1,cacert=/ca,etcd_lease=6",
      &options));
  EXPECT_EQ(options.rendezvous.join_timeout, absl::Seconds(60));
  EXPECT_EQ(options.rendezvous.last_call, absl::Seconds(2));
  EXPECT_EQ(options.rendezvous.close_timeout, absl::Seconds(3));
  EXPECT_EQ(options.rendezvous.lease, absl::Seconds(8));
  EXPECT_EQ(options.node_rank, 1);
  EXPECT_EQ(options.conf.at("is_host"), "true");
  EXPECT_EQ(options.conf.at("cacert"), "/ca");
  EXPECT_EQ(options.conf.at("etcd_lease"), "6");
  for (const char* text : {"join_timeout=soon", "last_call_timeout=-1", "rank=x", "color=red",
                           "store_type=file", "etcd_lease=0.5", "keep_alive_max_attempt=0", "nonsense"}) {
    EXPECT_THAT(ReadRendezvousConf(text, &options), StatusIs(absl::StatusCode::kInvalidArgument)) << text;
  }
}

TEST(RendezvousOptionsTest, OneNodeNeedsNoRendezvous) {
  for (const RunFlags& flags :
       {RunFlags{}, RunFlags{.nnodes = "1"}, RunFlags{.nnodes = "2", .node_rank = 1, .standalone = true}}) {
    TANDEM_ASSERT_OK_AND_ASSIGN(const RendezvousHandlerOptions options, MakeRendezvousOptions(flags, 3));
    EXPECT_EQ(options.backend, "");
    EXPECT_EQ(options.node_rank, -1);
    EXPECT_EQ(options.rendezvous.max_nodes, 1);
    EXPECT_EQ(options.rendezvous.max_restarts, 3);
  }
}

TEST(RendezvousOptionsTest, TheEndpointHasTorchrunsPorts) {
  TANDEM_ASSERT_OK_AND_ASSIGN(RendezvousHandlerOptions options,
                              MakeRendezvousOptions({.nnodes = "2", .node_rank = 1, .master_addr = "a"}, 0));
  EXPECT_EQ(options.backend, "static");
  EXPECT_EQ(options.endpoint, "a:29500");
  TANDEM_ASSERT_OK_AND_ASSIGN(
      options,
      MakeRendezvousOptions({.nnodes = "2", .node_rank = 1, .master_addr = "a", .master_port = 7}, 0));
  EXPECT_EQ(options.endpoint, "a:7");
  TANDEM_ASSERT_OK_AND_ASSIGN(
      options, MakeRendezvousOptions({.nnodes = "2:4", .rdzv_backend = "c10d", .rdzv_endpoint = "b"}, 0));
  EXPECT_EQ(options.endpoint, "b:29400");
  EXPECT_EQ(options.rendezvous.max_nodes, 4);
  TANDEM_ASSERT_OK_AND_ASSIGN(
      options, MakeRendezvousOptions({.nnodes = "1", .rdzv_backend = "etcd", .rdzv_endpoint = "c"}, 0));
  EXPECT_EQ(options.endpoint, "c:2379");
}

TEST(RendezvousOptionsTest, WhatIsMissingIsNamed) {
  const std::pair<RunFlags, const char*> cases[] = {
      {{.nnodes = "2", .master_addr = "a"}, "--node-rank is missing"},
      {{.nnodes = "2", .node_rank = 0}, "--rdzv-endpoint HOST:PORT of node 0 is missing"},
      {{.nnodes = "2", .node_rank = 2, .master_addr = "a"}, "--node-rank 2 is out of range"},
      {{.nnodes = "1:2", .node_rank = 0, .master_addr = "a"}, "--rdzv-backend c10d or etcd"},
      {{.nnodes = "2", .rdzv_backend = "c10d", .rdzv_endpoint = "a", .job_store = "etcd"},
       "--job-store etcd keeps the job's store where the nodes meet, which must be etcd"},
      {{.job_store = "etcd"}, "give --rdzv-backend etcd"},
      {{.rdzv_backend = "zookeeper"}, "--rdzv-backend zookeeper is not known"}};
  for (const auto& [flags, text] : cases) {
    EXPECT_THAT(MakeRendezvousOptions(flags, 0),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text)));
  }
}

}  // namespace
}  // namespace tandem::launcher
