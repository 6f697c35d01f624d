// SPDX-License-Identifier: Apache-2.0
#include "cli/monitor/replay_metrics.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::cli {
namespace {

using ::testing::HasSubstr;

TEST(ReplayMetrics, AreOneFamilyEachWithALineForEachTable) {
  v1::ListReplayTablesResponse state;
  state.set_chunk_bytes(4096);
  for (const char* const name : {"queue", "replay"}) {
    v1::ReplayTableInfo& table = *state.add_tables();
    table.mutable_options()->set_name(name);
    table.set_items(7);
    table.set_total_inserts(12345678901);
    table.set_removed_by_max_bytes(3);
    table.set_lost_items(2);
  }
  const std::string text = ReplayMetricsText(state);
  EXPECT_THAT(text, HasSubstr("# TYPE tandem_replay_chunk_bytes gauge\ntandem_replay_chunk_bytes 4096\n"));
  EXPECT_THAT(text, HasSubstr("# TYPE tandem_replay_items gauge\ntandem_replay_items{table=\"queue\"} 7\n"
                              "tandem_replay_items{table=\"replay\"} 7\n"));
  EXPECT_THAT(text, HasSubstr("tandem_replay_inserts_total{table=\"queue\"} 12345678901\n"));
  EXPECT_THAT(text, HasSubstr("tandem_replay_lost_items_total{table=\"replay\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("tandem_replay_removed_items_total{table=\"queue\",cause=\"max_bytes\"} 3\n"));
}

}  // namespace
}  // namespace tandem::cli
