// SPDX-License-Identifier: Apache-2.0
// `tandem weights` as users start it.

#include <signal.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "cli/monitor/weights_metrics.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rpc/connect.h"
#include "tests/testing/processes/tandem_process.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_key.h"
#include "weights/client/publisher.h"
#include "weights/client/remote_weights.h"

namespace tandem::cli {
namespace {

using ::tandem::testing::Finished;
using ::tandem::testing::RunTandem;
using ::tandem::testing::TandemProcess;
using ::testing::AllOf;
using ::testing::HasSubstr;

absl::Time Soon() { return MonotonicNow() + absl::Seconds(60); }

TEST(WeightsCommand, ServesWhatALearnerPublishesAndListsIt) {
  TandemProcess process({"weights", "serve", "--keep", "2"});
  std::string address;
  ASSERT_TRUE(process.WaitForLine([&](const std::string& line) {
    address = line;
    return true;
  })) << process.err();
  const Finished empty = RunTandem({"weights", "list", "--server", address});
  EXPECT_EQ(empty.exit_code, 0) << empty.err;
  EXPECT_EQ(empty.out, "no models yet\n");
  auto channel = rpc::Connect(address, {.channel = {.caller = testing::WithTestKey()}});
  TANDEM_ASSERT_OK(channel);
  weights::RemoteWeights weights(*std::move(channel));
  TANDEM_ASSERT_OK_AND_ASSIGN(
      const auto publisher,
      weights::Publisher::Create(&weights, {.model = "policy", .name = "learner/0"}, Soon()));
  const std::vector<float> values = {1, 2, 3};
  for (uint64_t step = 1; step <= 3; ++step)
    TANDEM_ASSERT_OK(publisher->Publish({{"x", {3}, values}}, {.step = 10 * step}, Soon()));
  const Finished listed = RunTandem({"weights", "list", "--server", address});
  EXPECT_EQ(listed.exit_code, 0) << listed.err;
  EXPECT_THAT(listed.out,
              AllOf(HasSubstr("policy\n  version    3, step 30, published "), HasSubstr(" by learner/0\n"),
                    HasSubstr("tensors    1, 12 bytes"), HasSubstr("kept       2, 3\n"),
                    HasSubstr("3 publishes, 0 refused, 0 pulls; 0 readers wait")));
  EXPECT_THAT(RunTandem({"weights", "list", "--server", address, "--json"}).out,
              HasSubstr("\"publisher\":\"learner/0\""));
  process.Signal(SIGTERM);
  EXPECT_EQ(process.Wait(), 0) << process.err();
}

TEST(WeightsCommand, AServerThatListensEverywherePrintsANameUnderWhichOthersReachIt) {
  TandemProcess process({"weights", "serve", "--listen", "0.0.0.0:0"});
  std::string address;
  ASSERT_TRUE(process.WaitForLine([&](const std::string& line) {
    address = line;
    return true;
  })) << process.err();
  char name[256] = {};
  ASSERT_EQ(::gethostname(name, sizeof(name) - 1), 0);
  EXPECT_THAT(address, ::testing::StartsWith(absl::StrCat(name, ":")));
  process.Signal(SIGTERM);
  EXPECT_EQ(process.Wait(), 0) << process.err();
}

TEST(WeightsCommand, AServerThatIsAwayIsNamed) {
  const Finished listed =
      RunTandem({"weights", "list", "--server", "unix:/nonexistent/socket", "--timeout", "0.2"});
  EXPECT_EQ(listed.exit_code, 1);
  EXPECT_THAT(listed.err, HasSubstr("unix:/nonexistent/socket"));
}

TEST(WeightsMetrics, AreOneFamilyEachWithALineForEachModel) {
  v1::ListWeightsResponse state;
  for (const char* const name : {"policy", "a \"b\""}) {
    v1::WeightsModelState& model = *state.add_models();
    model.set_model(name);
    model.mutable_head()->set_version(12345678901);
    model.set_refused(2);
    model.add_kept(1);
  }
  state.set_uploads(2);
  state.set_upload_bytes(4096);
  state.set_dropped_uploads(3);
  const std::string text = WeightsMetricsText(state);
  EXPECT_THAT(text, HasSubstr("# TYPE tandem_weights_version gauge\n"
                              "tandem_weights_version{model=\"policy\"} 12345678901\n"
                              "tandem_weights_version{model=\"a \\\"b\\\"\"} 12345678901\n"));
  EXPECT_THAT(text, HasSubstr("tandem_weights_refused_publishes_total{model=\"policy\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("tandem_weights_kept_versions{model=\"policy\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("# TYPE tandem_weights_uploads gauge\ntandem_weights_uploads 2\n"));
  EXPECT_THAT(text, HasSubstr("tandem_weights_upload_bytes 4096\n"));
  EXPECT_THAT(text, HasSubstr("# TYPE tandem_weights_dropped_uploads_total counter\n"
                              "tandem_weights_dropped_uploads_total 3\n"));
}

}  // namespace
}  // namespace tandem::cli
