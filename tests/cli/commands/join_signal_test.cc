// SPDX-License-Identifier: Apache-2.0
// Processes of every role that are asked to stop while they join a job whose store does not answer.

#include <arpa/inet.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>

#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/ipc/descriptor.h"
#include "cluster/store/store_server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/processes/processes.h"
#include "tests/testing/processes/tandem_process.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::cli {
namespace {

using ::testing::HasSubstr;
using testing::TandemProcess;

// Far below the time that a process waits for its store, 60 s.
constexpr absl::Duration kAtOnce = absl::Seconds(20);

// Takes connections and never answers.
class SilentStore {
 public:
  SilentStore() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(socket_.get(), 16), 0);
    EXPECT_EQ(::getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    address_ = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
  }
  const std::string& address() const { return address_; }
  // Waits until a process has connected. Returns false after a minute.
  bool Accept() {
    pollfd one = {socket_.get(), POLLIN, 0};
    if (::poll(&one, 1, 60'000) != 1) return false;
    connections_.emplace_back(::accept(socket_.get(), nullptr, nullptr));
    return connections_.back().get() >= 0;
  }

 private:
  const ipc::Descriptor socket_;
  std::vector<ipc::Descriptor> connections_;
  std::string address_;
};

struct Role {
  std::string name;
  std::vector<std::string> args;
  std::map<std::string, std::string> variables;
  int exit_code;  // of a process that was asked to stop
};

class JoinSignalTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ofstream(dir_.File("train.yaml"))
        << testing::ReadFile(absl::StrCat(TANDEM_JOBS_DIR, "/planted.yaml"));
    std::ofstream(dir_.File("rl.yaml"))
        << "name: arms\nenv: bandit\npolicy: {hidden: [8]}\n"
           "algorithm: {kind: impala, lr: 0.01, unroll: 8, batch: 4}\nactors: {envs: 4}\n"
           "stop: {env_steps: 20000}\nevaluation: {episodes: 10}\n";
  }
  std::vector<Role> Roles() {
    const auto member = [](const char* role) {
      return std::map<std::string, std::string>{
          {"TANDEM_ROLE", role}, {"WORLD_SIZE", "1"}, {"ROLE_RANK", "0"}, {"ROLE_WORLD_SIZE", "1"}};
    };
    auto learner = member("learner");
    learner["RANK"] = "0";
    const std::vector<std::string> rl = {"rl", dir_.File("rl.yaml")};
    return {
        {"worker", {"train", dir_.File("train.yaml")}, Worker(), 75},
        {"ps", {"ps", "--index", "0", "--num-servers", "1"}, {}, 0},
        {"ps with followers", {"ps", "--index", "0", "--num-servers", "1", "--followers", "1"}, {}, 0},
        {"replay", {"replay", "serve"}, member("replay"), 0},
        {"weights", {"weights", "serve"}, member("weights"), 0},
        {"learner", rl, learner, 75},
        {"actor", rl, member("actor"), 0},
        {"replay of rl", rl, member("replay"), 0},
        {"inference", rl, member("inference"), 0},
    };
  }
  static std::map<std::string, std::string> Worker() {
    return {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"TANDEM_NUM_PS", "1"}};
  }
  testing::TempDir dir_;
};

TEST_F(JoinSignalTest, EveryRoleEndsAtOnceAndSaysWhatItHasWaitedFor) {
  for (const int signal : {SIGTERM, SIGINT}) {
    for (Role& role : Roles()) {
      SCOPED_TRACE(absl::StrCat(role.name, ", signal ", signal));
      SilentStore store;
      role.variables["TANDEM_STORE"] = store.address();
      TandemProcess process(role.args, role.variables, dir_.path());
      ASSERT_TRUE(store.Accept());
      const absl::Time asked = MonotonicNow();
      process.Signal(signal);
      EXPECT_EQ(process.Wait(), role.exit_code) << process.err();
      EXPECT_LT(MonotonicNow() - asked, kAtOnce);
      EXPECT_THAT(process.err(),
                  HasSubstr(absl::StrCat("it has waited for the job's store at ", store.address(), " for ")));
    }
  }
}

TEST_F(JoinSignalTest, AWorkerThatWaitsForItsServersEndsAtOnce) {
  const auto store = *cluster::StoreServer::Start("127.0.0.1:0");
  auto variables = Worker();
  variables["TANDEM_STORE"] = absl::StrCat("127.0.0.1:", store->port());
  TandemProcess process({"train", dir_.File("train.yaml")}, variables, dir_.path());
  TANDEM_ASSERT_OK(store->store()->Get("job/opened/worker/0", testing::kTestTimeout));  // it has joined
  const absl::Time asked = MonotonicNow();
  process.Signal(SIGTERM);
  EXPECT_EQ(process.Wait(), 75) << process.err();
  EXPECT_LT(MonotonicNow() - asked, kAtOnce);
  EXPECT_THAT(process.err(), HasSubstr("stopped by SIGTERM"));
}

}  // namespace
}  // namespace tandem::cli
