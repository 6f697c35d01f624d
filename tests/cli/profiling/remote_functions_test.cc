// SPDX-License-Identifier: Apache-2.0
// Tests `tandem status` and `tandem trace` with a job that consists of remote functions only.

#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "base/json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/cli/profiling/trace_checker.h"
#include "tests/testing/processes/file_watch.h"
#include "tests/testing/processes/tandem_process.h"
#include "tests/testing/temp_dir.h"

namespace tandem::cli {
namespace {

using Json = nlohmann::json;
using tandem::testing::Finished;
using tandem::testing::kTestTimeout;
using tandem::testing::ReadFile;
using tandem::testing::RunTandem;
using tandem::testing::TandemProcess;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;

// Returns (process, category) of each event of this name.
std::set<std::pair<int, std::string>> WhereIs(const Json& trace, const std::string& name) {
  std::set<std::pair<int, std::string>> places;
  for (const Json& event : testing::EventsNamed(trace, name)) places.emplace(event["pid"], event["cat"]);
  return places;
}

class RemoteFunctionsProfilingTest : public ::testing::Test {
 protected:
  // Starts the job of three processes, which runs until the end of the test. Blocks until `tandem status`
  // shows `trainers` of them in a later step and the others serving.
  void AwaitStatusOf(const std::string& program, int trainers) {
    std::filesystem::create_directory(dir.File("logs"));
    tandem::testing::FileWatch watch({dir.File("logs")});
    job.emplace(std::vector<std::string>{"run", "--workers", "3", "--log-dir", dir.File("logs"), "--",
                                         program, "1000000000"},
                std::map<std::string, std::string>{}, dir.path());
    const std::string job_file = dir.File("logs/job.json");
    ASSERT_TRUE(
        watch.Await([&] { return !ReadFile(job_file).empty(); }, absl::Now() + kTestTimeout, {job->pid()}))
        << job->err();
    TandemProcess status({"status", "--json", "--interval", "0.2", "--job", dir.File("logs")});
    const bool came = status.WaitForLine([trainers](const std::string& line) {
      int training = 0, serving = 0;
      for (const Json& member : ParseJson(line).value("members", Json::array())) {
        training += member["state"] == "training" && member["step"] > 0 ? 1 : 0;
        serving += member["state"] == "serving" ? 1 : 0;
      }
      return training == trainers && serving == 3 - trainers;
    });
    if (!came) {
      job->Signal(SIGTERM);
      job->Wait();  // what it says
    }
    ASSERT_TRUE(came) << status.out() << status.err() << job->err();
  }

  tandem::testing::TempDir dir;
  std::optional<TandemProcess> job;
};

TEST_F(RemoteFunctionsProfilingTest, StatusShowsTheStagesOfAPipeline) {
  AwaitStatusOf(TANDEM_PIPELINE_BINARY, 1);
}

TEST_F(RemoteFunctionsProfilingTest, StatusAndTraceShowWhoCallsWhat) {
  AwaitStatusOf(TANDEM_PARAMETER_SERVER_BINARY, 2);
  const std::string path = dir.File("trace.json");
  const Finished finished = RunTandem({"trace", "--seconds", "2", "-o", path, "--job", dir.File("logs")});
  ASSERT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_THAT(finished.out, HasSubstr("3 processes"));
  const Json trace = ParseJson(ReadFile(path));
  EXPECT_THAT(testing::CheckTrace(trace), IsEmpty());
  const std::vector<std::pair<int, std::string>> everywhere = {
      {1, "queued function"}, {1, "function"}, {2, "remote"}, {3, "remote"}};
  for (const char* function : {"pull", "push"}) {
    EXPECT_THAT(WhereIs(trace, function), IsSupersetOf(everywhere)) << function;
  }
  EXPECT_THAT(testing::EventsNamed(trace, "tandem.v1.RemoteFunctions/Call"), Not(IsEmpty()));
  EXPECT_GT(trace["otherData"]["joined_calls"], 10);
}

}  // namespace
}  // namespace tandem::cli
