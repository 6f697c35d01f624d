// SPDX-License-Identifier: Apache-2.0
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "absl/cleanup/cleanup.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/host/machine.h"
#include "launcher/host/run_program.h"
#include "netinet/in.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::launcher {
namespace {

using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::StatusIs;

TEST(ThisMachineTest, FactsAreThere) {
  const std::unique_ptr<Machine> machine = ThisMachine();
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string memory, machine->ReadFile("/proc/meminfo"));
  EXPECT_THAT(memory, HasSubstr("MemTotal"));
  EXPECT_THAT(machine->ReadFile("/nowhere"), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(machine->HostName(), Not(IsEmpty()));
  EXPECT_THAT(machine->UsableCores(), Ge(1));
  EXPECT_THAT(machine->SimdTargets(), Not(IsEmpty()));
  EXPECT_THAT(machine->GetLimit(Machine::Resource::kOpenFiles).soft, Ge(1u));
  TANDEM_EXPECT_OK(machine->StatFileSystem("/"));
  TANDEM_EXPECT_OK(machine->CanMapMemory());
  EXPECT_FALSE(machine->Variable("TANDEM_NO_SUCH_VARIABLE").has_value());
  for (const Machine::Version& version : machine->Versions()) {
    EXPECT_FALSE(version.built.empty() && version.running.empty()) << version.library;
  }
  const std::vector<Machine::Interface> interfaces = machine->Interfaces();
  EXPECT_TRUE(std::any_of(interfaces.begin(), interfaces.end(), [](const auto& i) { return i.loopback; }));
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> addresses, machine->Resolve("127.0.0.1"));
  EXPECT_THAT(addresses, ::testing::ElementsAre("127.0.0.1"));
}

TEST(ThisMachineTest, APortThatIsTakenIsSeen) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  absl::Cleanup close_fd = [fd] { ::close(fd); };
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t size = sizeof(address);
  ASSERT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(fd, 1), 0);
  ASSERT_EQ(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const std::unique_ptr<Machine> machine = ThisMachine();
  TANDEM_EXPECT_OK(machine->CanListen(0));
  EXPECT_THAT(machine->CanListen(ntohs(address.sin_port)),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("in use")));
}

TEST(RunProgramTest, OutputIsReadAndFailureIsTold) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string text,
                              RunProgram({"/bin/sh", "-c", "echo out; echo err >&2"}, absl::Seconds(60)));
  EXPECT_EQ(text, "out\nerr\n");
  EXPECT_THAT(RunProgram({"/bin/sh", "-c", "echo no; exit 3"}, absl::Seconds(60)),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("exit code 3: no")));
  EXPECT_THAT(RunProgram({"/no/such/program"}, absl::Seconds(60)), StatusIs(absl::StatusCode::kUnavailable));
}

TEST(RunProgramTest, WhatDoesNotEndIsKilled) {
  EXPECT_THAT(RunProgram({"/bin/sleep", "1000"}, absl::Milliseconds(50)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("50ms")));
}

TEST(RunProgramTest, EndlessOutputIsCut) {
  EXPECT_THAT(RunProgram({"/bin/sh", "-c", "yes"}, absl::Milliseconds(50)),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
}

}  // namespace
}  // namespace tandem::launcher
