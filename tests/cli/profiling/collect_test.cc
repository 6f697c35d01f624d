// SPDX-License-Identifier: Apache-2.0
#include "cli/profiling/collect.h"

#include <memory>
#include <string>
#include <vector>

#include "base/trace/recorder.h"
#include "base/trace/trace.h"
#include "cli/profiling/timeline.h"
#include "rpc/diagnostics/diagnostics_server.h"
#include "tests/testing/status_matchers.h"

namespace tandem::cli {
namespace {

using ::testing::HasSubstr;

constexpr trace::Kind kWork{"work", "test"};

// All members are this process, each with a server of its own. A process can have one recording at a time, so
// only one member can be traced.
class CollectTest : public ::testing::Test {
 protected:
  Member Serve(const std::string& name, int64_t skew_ns) {
    auto status = std::make_shared<rpc::ProcessStatus>(name);
    auto server = rpc::DiagnosticsServer::Start({.skew_ns = skew_ns}, status, &recorder_);
    EXPECT_TRUE(server.ok()) << server.status();
    servers_.push_back(*std::move(server));
    return {.name = name, .diagnostics = servers_.back()->address()};
  }
  trace::Recorder recorder_;
  std::vector<std::unique_ptr<rpc::DiagnosticsServer>> servers_;
};

constexpr CollectOptions kShort{.length = absl::Milliseconds(20), .timeout = absl::Seconds(10)};

TEST_F(CollectTest, ClocksOfOneKernelAreTheSame) {
  const std::vector<CollectedTrace> collected = CollectTraces({Serve("worker/0", 0)}, kShort);
  ASSERT_EQ(collected.size(), 1u);
  TANDEM_ASSERT_OK(collected[0].status);
  EXPECT_TRUE(collected[0].own_clock);
  EXPECT_EQ(collected[0].clock.error(), 0);
  EXPECT_EQ(collected[0].clock.ToOurs(12345), 12345);
}

TEST_F(CollectTest, AClockThatIsOffIsAlignedWithinTheErrorThatIsTold) {
  constexpr int64_t kSkew = -7'000'000'000'000;  // the machine was started two hours later than ours
  const int64_t before = SteadyNanoseconds();
  const std::vector<CollectedTrace> collected = CollectTraces({Serve("worker/0", kSkew)}, kShort);
  const int64_t after = SteadyNanoseconds();
  ASSERT_EQ(collected.size(), 1u);
  TANDEM_ASSERT_OK(collected[0].status);
  EXPECT_FALSE(collected[0].own_clock);
  const ClockLine& clock = collected[0].clock;
  EXPECT_GT(clock.error(), 0);
  EXPECT_LT(clock.error(), 100'000'000);
  const int64_t from = collected[0].trace.from_ns;
  EXPECT_LE(std::abs(clock.ToOurs(from) - (from - kSkew)), clock.error());
  EXPECT_GE(clock.ToOurs(from), before - clock.error());
  EXPECT_LE(clock.ToOurs(from), after + clock.error());
}

TEST_F(CollectTest, WhoCannotBeTracedIsNamedAndTheOthersAreThere) {
  const Member good = Serve("worker/0", 0);
  const Member left{.name = "worker/1", .diagnostics = "127.0.0.1:1", .left = true};
  const Member dead{.name = "worker/2", .diagnostics = "127.0.0.1:1"};
  const Member old{.name = "worker/3"};
  const std::vector<CollectedTrace> collected = CollectTraces({good, left, dead, old}, kShort);
  ASSERT_EQ(collected.size(), 3u);
  TANDEM_EXPECT_OK(collected[0].status);
  EXPECT_EQ(collected[1].member.name, "worker/2");
  EXPECT_FALSE(collected[1].status.ok());
  EXPECT_THAT(collected[2].status.message(), HasSubstr("serves no diagnostics"));
  EXPECT_FALSE(trace::IsOn());
  EXPECT_EQ(MakeTimeline(collected).processes.size(), 1u);
}

TEST_F(CollectTest, NobodyIsTracedTwiceAtATime) {
  const Member one = Serve("worker/0", 0);
  TANDEM_ASSERT_OK(recorder_.Start());
  const std::vector<CollectedTrace> collected = CollectTraces({one}, kShort);
  EXPECT_THAT(collected[0].status.message(), HasSubstr("traced already"));
  EXPECT_TRUE(trace::IsOn());  // the other's goes on
}

}  // namespace
}  // namespace tandem::cli
