// kill -9 of a rank in the middle of its work: real processes, a store over gRPC.

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "collectives/process_group.h"
#include "collectives/store/remote_store.h"
#include "collectives/store/store_server.h"
#include "tests/testing/status_matchers.h"

extern char** environ;

namespace tandem::collectives {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kWorld = 3;

// Reduces until it fails; says in the store that it has begun, and how it ended.
absl::Status Work(Store* store, int rank) {
  ProcessGroupOptions options;
  options.rank = rank;
  options.world_size = kWorld;
  auto group = InitProcessGroup(store, options);
  if (!group.ok()) return group.status();
  std::vector<float> values(4 << 20, 0.0f);
  for (int round = 0;; ++round) {
    if (absl::Status status = (*group)->AllReduce(absl::MakeSpan(values), ReduceOp::kAvg); !status.ok())
      return status;
    if (round == 0) {
      if (absl::Status told = store->Set(absl::StrCat("begun/", rank), ""); !told.ok()) return told;
    }
  }
}

// Not a test of its own: what the test below runs as another process.
TEST(KillChild, DISABLED_Works) {
  const char* target = std::getenv("TANDEM_TEST_STORE");
  const char* rank_text = std::getenv("TANDEM_TEST_RANK");
  ASSERT_TRUE(target != nullptr && rank_text != nullptr);
  int rank = 0;
  ASSERT_TRUE(absl::SimpleAtoi(rank_text, &rank));
  TANDEM_ASSERT_OK_AND_ASSIGN(auto channel, rpc::ConnectGrpc(target));
  RemoteStore store(std::move(channel));
  const absl::Status end = Work(&store, rank);
  TANDEM_EXPECT_OK(store.Set(absl::StrCat("end/", rank), end.ToString()));
}

class Child {
 public:
  Child(const std::string& target, int rank) {
    std::vector<std::string> arguments = {"/proc/self/exe", "--gtest_filter=KillChild.*",
                                          "--gtest_also_run_disabled_tests", "--gtest_brief=1"};
    std::vector<std::string> variables = {absl::StrCat("TANDEM_TEST_STORE=", target),
                                          absl::StrCat("TANDEM_TEST_RANK=", rank)};
    for (char** one = environ; *one != nullptr; ++one) variables.push_back(*one);
    std::vector<char*> argv, envp;
    for (std::string& text : arguments) argv.push_back(text.data());
    for (std::string& text : variables) envp.push_back(text.data());
    argv.push_back(nullptr);
    envp.push_back(nullptr);
    TANDEM_CHECK(posix_spawn(&pid_, "/proc/self/exe", nullptr, nullptr, argv.data(), envp.data()) == 0);
  }
  ~Child() { Kill(); }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

 private:
  pid_t pid_ = 0;
};

TEST(KillTest, AKilledRankIsNamedOnAllOthersAtOnce) {
  TANDEM_ASSERT_OK_AND_ASSIGN(auto server, StoreServer::Start("127.0.0.1:0"));
  const std::string target = absl::StrCat("127.0.0.1:", server->port());
  Child first(target, 1), second(target, 2);
  absl::Status mine;
  absl::Time ended;
  std::thread worker([&] {
    mine = Work(server->store(), 0);
    ended = absl::Now();
  });
  TANDEM_EXPECT_OK(server->store()->Wait({"begun/0", "begun/1", "begun/2"}, absl::Seconds(60)));
  const absl::Time killed = absl::Now();
  first.Kill();
  worker.join();
  EXPECT_THAT(mine, StatusIs(absl::StatusCode::kUnavailable,
                             AllOf(HasSubstr("all_reduce #"), HasSubstr("rank 1 was lost"))));
  EXPECT_LT(ended - killed, absl::Seconds(5));
  auto theirs = server->store()->Get("end/2", absl::Seconds(30));
  TANDEM_ASSERT_OK(theirs);
  EXPECT_THAT(*theirs, AllOf(HasSubstr("UNAVAILABLE"), HasSubstr("rank 1 was lost")));
}

}  // namespace
}  // namespace tandem::collectives
