// SPDX-License-Identifier: Apache-2.0
// Processes of `tandem ps` that have one name: at the same time, or after each other.

#include <signal.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/json.h"
#include "cluster/store/store_server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/processes/processes.h"
#include "tests/testing/processes/tandem_process.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::kTestTimeout;
using testing::TandemProcess;

// No process waits as long as this in a test.
constexpr char kLongLease[] = "3600";

class PsLivesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    TANDEM_ASSERT_OK_AND_ASSIGN(store_, cluster::StoreServer::Start("127.0.0.1:0"));
    store_->membership()->AllowRestart("ps");  // whose silence does not end the job
  }
  std::unique_ptr<TandemProcess> Start(const std::string& lease) const {
    return std::make_unique<TandemProcess>(
        std::vector<std::string>{"ps", "--index", "0", "--num-servers", "1", "--lease", lease},
        std::map<std::string, std::string>{{"TANDEM_STORE", absl::StrCat("127.0.0.1:", store_->port())}});
  }
  // Waits until the process `pid` is the life `life` of ps/0 and serves. A process that is stopped while it
  // starts may be stopped in the middle of a heartbeat, and then takes its store for silent. Returns false
  // after kTestTimeout.
  bool AwaitLife(int64_t life, pid_t pid) const {
    const absl::Time deadline = MonotonicNow() + kTestTimeout;
    while (MonotonicNow() < deadline) {
      for (const cluster::MemberStatus& member : store_->membership()->Statuses()) {
        if (member.name == "ps/0" && member.life == life && member.report.pid == pid &&
            member.report.state == "serving") {
          return true;
        }
      }
      absl::SleepFor(absl::Milliseconds(10));
    }
    return false;
  }

  std::unique_ptr<cluster::StoreServer> store_;
};

TEST_F(PsLivesTest, TheSecondOfTwoProcessesIsToldWhoIsThere) {
  const auto first = Start("2");
  ASSERT_TRUE(AwaitLife(1, first->pid()));
  const auto second = Start("2");
  EXPECT_EQ(second->Wait(), 1);
  EXPECT_THAT(second->err(), AllOf(HasSubstr(absl::StrCat("ps/0 is there already: pid ", first->pid())),
                                   HasSubstr("another rank or index")));
  EXPECT_TRUE(AwaitLife(1, first->pid()));
  first->Signal(SIGTERM);
  EXPECT_EQ(first->Wait(), 0) << first->err();
}

TEST_F(PsLivesTest, AProcessThatWasKilledIsReplacedWithoutWaitingForItsLease) {
  const auto first = Start(kLongLease);
  ASSERT_TRUE(AwaitLife(1, first->pid()));
  first->Signal(SIGKILL);
  const auto second = Start(kLongLease);
  EXPECT_TRUE(AwaitLife(2, second->pid())) << second->err();
}

TEST_F(PsLivesTest, AProcessThatWasStoppedIsReplacedAfterItsLeaseAndThenEnds) {
  const auto first = Start("2");
  ASSERT_TRUE(AwaitLife(1, first->pid()));
  first->Signal(SIGSTOP);
  const auto second = Start(kLongLease);
  EXPECT_TRUE(AwaitLife(2, second->pid())) << second->err();
  first->Signal(SIGCONT);
  EXPECT_EQ(first->Wait(), 1);
  EXPECT_THAT(first->err(), HasSubstr(absl::StrCat("ps/0 (life 1) was replaced by pid ", second->pid())));
}

TEST(PsLivesUnderALauncherTest, AServerThatIsKilledComesBackAsTheNextLife) {
  const testing::TempDir dir;
  const std::string mark = absl::StrCat("TANDEM_TEST_MARK=", dir.path());
  TandemProcess tandem({"run", "--log-dir", dir.path(), "--ps", "1", "--workers", "1", "--restart",
                        "ps=alone", "--", "/bin/sh", "-c", "exec tail -f /dev/null"},
                       {{"TANDEM_TEST_MARK", dir.path()}});
  ASSERT_TRUE(tandem.WaitForOutput("serving at ")) << tandem.err();
  std::string store;
  for (const pid_t pid : testing::ProcessesMarked(mark)) {
    const std::string environment = testing::ReadFile(absl::StrCat("/proc/", pid, "/environ"));
    for (const absl::string_view variable : absl::StrSplit(environment, '\0')) {
      if (absl::StartsWith(variable, "TANDEM_STORE=")) store = std::string(variable.substr(13));
    }
  }
  // Waits for the life `life` of the server and returns its pid; 0 after kTestTimeout.
  const auto pid_of = [&store](int64_t life) -> pid_t {
    const absl::Time deadline = MonotonicNow() + kTestTimeout;
    while (MonotonicNow() < deadline) {
      const testing::Finished status = testing::RunTandem({"status", "--store", store, "--json"});
      if (status.exit_code != 0) return 0;
      const nlohmann::json job = ParseJson(status.out);
      for (const auto& member : job["members"]) {
        if (member["member"] == "ps/0" && member["life"] == life) return member["pid"];
      }
    }
    return 0;
  };
  for (int64_t life = 1; life <= 2; ++life) {
    const pid_t server = pid_of(life);
    ASSERT_GT(server, 0) << tandem.err();
    ::kill(server, SIGKILL);
  }
  EXPECT_GT(pid_of(3), 0) << tandem.err();
  tandem.Signal(SIGTERM);
  EXPECT_EQ(tandem.Wait(), 143);
  EXPECT_TRUE(testing::WaitUntilNoneMarked(mark));
}

}  // namespace
}  // namespace tandem::cli
