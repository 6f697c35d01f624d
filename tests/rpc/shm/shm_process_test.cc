// SPDX-License-Identifier: Apache-2.0
// Tests with real processes: processes that die, and more processes than processors.

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "rpc/connect.h"
#include "rpc/server.h"
#include "tests/rpc/echo_service.h"
#include "tests/testing/status_matchers.h"

extern char** environ;

namespace tandem::rpc {
namespace {

using ::tandem::testing::StatusIs;
using testing::DeferredCalls;
using testing::DeferringService;
using testing::EchoService;
using ::testing::HasSubstr;
using testing::kEcho;
using testing::kTestTimeout;
using testing::PlainEchoService;

// Runs this program again with the test "ShmProcessChild.<role>", which prints a line when it is ready. (A
// fork would not have gRPC's threads.)
class Child {
 public:
  Child(const std::string& role, const std::string& target) {
    int out[2];
    TANDEM_CHECK(pipe2(out, O_CLOEXEC) == 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, out[1], 3);
    std::vector<std::string> variables;
    for (char** one = environ; *one != nullptr; ++one) variables.push_back(*one);
    variables.push_back("TANDEM_TEST_ROLE=" + role);
    variables.push_back("TANDEM_TEST_TARGET=" + target);
    std::vector<char*> env;
    for (std::string& one : variables) env.push_back(one.data());
    env.push_back(nullptr);
    std::string program = "/proc/self/exe", filter = "--gtest_filter=ShmProcessChild." + role;
    char* arguments[] = {program.data(), filter.data(), nullptr};
    TANDEM_CHECK(posix_spawn(&pid_, program.c_str(), &actions, nullptr, arguments, env.data()) == 0);
    posix_spawn_file_actions_destroy(&actions);
    close(out[1]);
    out_ = out[0];
  }
  ~Child() {
    Kill();
    close(out_);
  }
  // Returns the next line that it prints. Blocks until then; empty if it has ended.
  std::string Line() {
    std::string line;
    char c;
    while (read(out_, &c, 1) == 1 && c != '\n') line += c;
    return line;
  }
  void Kill() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
      pid_ = -1;
    }
  }
  int Wait() {
    int status = -1;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  int out_;
};

std::string Role() {
  const char* role = std::getenv("TANDEM_TEST_ROLE");
  return role == nullptr ? "" : role;
}
std::string Target() { return std::getenv("TANDEM_TEST_TARGET"); }
void Say(const std::string& line) {
  const std::string text = line + "\n";
  TANDEM_CHECK(write(3, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
}

// ---- The tests that child processes run

TEST(ShmProcessChild, Server) {
  if (Role() != "Server") GTEST_SKIP() << "runs as a child";
  DeferredCalls deferred_calls;
  auto server = Server::Start({.listen = Target()}, {DeferringService(&deferred_calls)});
  ASSERT_TRUE(server.ok()) << server.status();
  Say(absl::StrCat((*server)->port()));
  const std::shared_ptr<ServerCall> first = deferred_calls.Take(absl::Seconds(600));
  Say("parked");
  while (std::shared_ptr<ServerCall> call = deferred_calls.Take(absl::Seconds(600)))
    call->Finish(call->request());
}

TEST(ShmProcessChild, EchoServer) {
  if (Role() != "EchoServer") GTEST_SKIP() << "runs as a child";
  auto server = Server::Start({.listen = Target()}, {PlainEchoService()});
  ASSERT_TRUE(server.ok()) << server.status();
  Say(absl::StrCat((*server)->port()));
  pause();
}

TEST(ShmProcessChild, ParkedClient) {
  if (Role() != "ParkedClient") GTEST_SKIP() << "runs as a child";
  auto channel = Connect(Target(), {.transport = "shm"});
  ASSERT_TRUE(channel.ok()) << channel.status();
  // When the process dies, its request is in the shared memory, and the memory for a response is its own.
  (*channel)->CallAsync(kEcho, Bytes(std::string(200000, 'x')), {.timeout = absl::Seconds(600)},
                        [](absl::StatusOr<Bytes>) {});
  pause();
}

TEST(ShmProcessChild, BusyClient) {
  if (Role() != "BusyClient") GTEST_SKIP() << "runs as a child";
  auto channel = Connect(Target(), {.transport = "shm"});
  ASSERT_TRUE(channel.ok()) << channel.status();
  for (int i = 0; i < 1000; ++i) {
    const std::string body(i % 10 == 0 ? 100000 : 8, static_cast<char>(i));
    absl::StatusOr<Bytes> response = (*channel)->Call(kEcho, EncodeBulk(v1::EchoMessage(), Bytes(body)), {});
    ASSERT_TRUE(response.ok()) << response.status();
  }
}

// ---- The tests

TEST(ShmProcessTest, AKilledServerEndsItsCallsAndTheNextOneIsFound) {
  for (int round = 0; round < 3; ++round) {
    // A host of this test's own: another program does not take the port between two servers.
    Child server("Server", "127.0.77.6:0");
    const std::string target = absl::StrCat("127.0.77.6:", server.Line());
    TANDEM_ASSERT_OK_AND_ASSIGN(auto channel, Connect(target));
    ASSERT_EQ(channel->transport(), "shm");
    absl::Notification failed, served;
    absl::Status status;
    channel->CallAsync(kEcho, Bytes(std::string(50000, 'x')), {.timeout = kTestTimeout},
                       [&](absl::StatusOr<Bytes> response) {
                         status = response.status();
                         failed.Notify();
                       });
    ASSERT_EQ(server.Line(), "parked");
    absl::StatusOr<Bytes> again = absl::UnknownError("");
    // These calls are in flight during the kill.
    for (int i = 0; i < 100; ++i) {
      channel->CallAsync(kEcho, Bytes(std::string(i * 1000, 'y')), {.timeout = kTestTimeout},
                         [](absl::StatusOr<Bytes>) {});
    }
    const std::string process = absl::StrCat("process ", server.pid());
    server.Kill();
    ASSERT_TRUE(failed.WaitForNotificationWithTimeout(kTestTimeout));
    EXPECT_THAT(status,
                StatusIs(absl::StatusCode::kUnavailable,
                         ::testing::AllOf(HasSubstr(process), HasSubstr(target), HasSubstr("has ended"))));
    channel->CallAsync(kEcho, EncodeBulk(v1::EchoMessage(), Bytes(std::string(50000, 'z'))),
                       {.timeout = kTestTimeout, .idempotent = true}, [&](absl::StatusOr<Bytes> response) {
                         again = std::move(response);
                         served.Notify();
                       });
    Child next("EchoServer", target);
    ASSERT_NE(next.Line(), "");
    ASSERT_TRUE(served.WaitForNotificationWithTimeout(kTestTimeout));
    TANDEM_EXPECT_OK(again.status());
  }
}

TEST(ShmProcessTest, AKilledClientsCallsAreCancelledAndItsMemoryGoes) {
  DeferredCalls deferred_calls;
  auto server = Server::Start({}, {DeferringService(&deferred_calls)});
  TANDEM_ASSERT_OK(server.status());
  const auto mappings = [] {
    int count = 0;
    FILE* maps = std::fopen("/proc/self/maps", "r");
    for (char line[512]; std::fgets(line, sizeof(line), maps) != nullptr;) {
      count += std::string(line).find("memfd:tandem-rpc") != std::string::npos;
    }
    std::fclose(maps);
    return count;
  };
  for (int round = 0; round < 3; ++round) {
    Child client("ParkedClient", absl::StrCat("127.0.0.1:", (*server)->port()));
    auto call = deferred_calls.Take();
    ASSERT_NE(call, nullptr);
    EXPECT_FALSE(call->IsCancelled());
    EXPECT_GT(mappings(), 0);
    auto memory = call->ResponseMemory(100000);
    ASSERT_NE(memory, nullptr);
    EXPECT_EQ(call->peer(), absl::StrCat("shm:process ", client.pid()));
    absl::Notification cancelled;
    call->OnCancel([&cancelled] { cancelled.Notify(); });
    client.Kill();
    EXPECT_TRUE(cancelled.WaitForNotificationWithTimeout(kTestTimeout));
    EXPECT_TRUE(call->IsCancelled());
    EXPECT_EQ(call->request().Flatten(), std::string(200000, 'x')) << "kept memory stays readable";
    const char* data = memory.get();
    call->Finish(Bytes(Slice(std::move(memory), data, 100000)));
    call.reset();
    // The connection's thread drops the last reference. There is no event for the unmapping of the memory, so
    // the test polls.
    const absl::Time give_up = absl::Now() + kTestTimeout;
    while (mappings() > 0 && absl::Now() < give_up) std::this_thread::yield();
    EXPECT_EQ(mappings(), 0);
  }
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    EXPECT_THAT(entry.path().string(), ::testing::Not(HasSubstr("tandem")));
  }
}

TEST(ShmProcessTest, MoreClientsThanProcessorsAllGetOn) {
  auto server = Server::Start({}, {PlainEchoService()});
  TANDEM_ASSERT_OK(server.status());
  std::vector<std::unique_ptr<Child>> clients;
  for (int i = 0; i < 4; ++i) {
    clients.push_back(std::make_unique<Child>("BusyClient", absl::StrCat("127.0.0.1:", (*server)->port())));
  }
  for (const auto& client : clients) EXPECT_EQ(client->Wait(), 0);
}

}  // namespace
}  // namespace tandem::rpc
