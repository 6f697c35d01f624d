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

// Reduces until it fails; says in the store that it has begun, and how it ended.
// `progress` learns when the first round is done; it is not `store` where that one is about to die, as the
// answer to its last call would be lost.
absl::Status Work(Store* store, Store* progress, int rank, int world_size) {
  ProcessGroupOptions options;
  options.rank = rank;
  options.world_size = world_size;
  auto group = InitProcessGroup(store, options);
  if (!group.ok()) return group.status();
  std::vector<float> values(4 << 20, 0.0f);
  for (int round = 0;; ++round) {
    if (absl::Status status = (*group)->AllReduce(absl::MakeSpan(values), ReduceOp::kAvg); !status.ok())
      return status;
    if (round == 0) {
      if (absl::Status told = progress->Set(absl::StrCat("begun/", rank), ""); !told.ok()) return told;
    }
  }
}

// Not tests of their own: what the tests below run as other processes.
TEST(KillChild, DISABLED_Works) {
  const char* target = std::getenv("TANDEM_TEST_STORE");
  const char* rank_text = std::getenv("TANDEM_TEST_RANK");
  ASSERT_TRUE(target != nullptr && rank_text != nullptr);
  int rank = 0;
  ASSERT_TRUE(absl::SimpleAtoi(rank_text, &rank));
  TANDEM_ASSERT_OK_AND_ASSIGN(auto channel, rpc::ConnectGrpc(target));
  RemoteStore store(std::move(channel));
  const absl::Status end = Work(&store, &store, rank, /*world_size=*/3);
  TANDEM_EXPECT_OK(store.Set(absl::StrCat("end/", rank), end.ToString()));
}

TEST(KillChild, DISABLED_HostsTheStoreAndWorks) {
  const char* target = std::getenv("TANDEM_TEST_STORE");
  ASSERT_TRUE(target != nullptr);
  TANDEM_ASSERT_OK_AND_ASSIGN(auto channel, rpc::ConnectGrpc(target));
  RemoteStore bulletin(std::move(channel));
  TANDEM_ASSERT_OK_AND_ASSIGN(auto server, StoreServer::Start("127.0.0.1:0"));
  TANDEM_ASSERT_OK(bulletin.Set("port", absl::StrCat(server->port())));
  (void)Work(server->store(), &bulletin, 0, /*world_size=*/2);
}

class Child {
 public:
  Child(const std::string& test, const std::string& target, int rank) {
    std::vector<std::string> arguments = {"/proc/self/exe", "--gtest_filter=KillChild.DISABLED_" + test,
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
  Child first("Works", target, 1), second("Works", target, 2);
  absl::Status mine;
  absl::Time ended;
  std::thread worker([&] {
    mine = Work(server->store(), server->store(), 0, /*world_size=*/3);
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

TEST(KillTest, ARankIsNamedThoughTheStoreDiedWithIt) {
  TANDEM_ASSERT_OK_AND_ASSIGN(auto bulletin, StoreServer::Start("127.0.0.1:0"));
  Child host("HostsTheStoreAndWorks", absl::StrCat("127.0.0.1:", bulletin->port()), 0);
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string port, bulletin->store()->Get("port", absl::Seconds(60)));
  TANDEM_ASSERT_OK_AND_ASSIGN(auto channel, rpc::ConnectGrpc("127.0.0.1:" + port));
  RemoteStore store(std::move(channel));
  absl::Status mine;
  absl::Time ended;
  std::thread worker([&] {
    mine = Work(&store, bulletin->store(), 1, /*world_size=*/2);
    ended = absl::Now();
  });
  TANDEM_EXPECT_OK(bulletin->store()->Wait({"begun/0", "begun/1"}, absl::Seconds(60)));
  const absl::Time killed = absl::Now();
  host.Kill();
  worker.join();
  EXPECT_THAT(mine, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank 0 was lost")));
  EXPECT_LT(ended - killed, absl::Seconds(5));
}

}  // namespace
}  // namespace tandem::collectives
