// SPDX-License-Identifier: Apache-2.0
#include "cluster/membership/member_process.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tandem/v1/store.pb.h"

namespace tandem::cluster {
namespace {

// A process that does nothing until it is killed, and how it identifies itself.
class StoppedChild {
 public:
  StoppedChild() {
    int ready[2];
    EXPECT_EQ(::pipe(ready), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      const v1::MemberProcess proto = MemberProcess::Self().ToProto();
      const uint64_t started = proto.started();
      (void)!::write(ready[1], &started, sizeof(started));
      while (true) ::pause();
    }
    process = MemberProcess::Self();
    process.pid = pid_;
    EXPECT_EQ(::read(ready[0], &process.started, sizeof(process.started)),
              static_cast<ssize_t>(sizeof(process.started)));
    ::close(ready[0]);
    ::close(ready[1]);
  }
  ~StoppedChild() { KillAndWait(); }
  // Leaves a zombie.
  void Kill() {
    ::kill(pid_, SIGKILL);
    siginfo_t info = {};
    EXPECT_EQ(::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT), 0);
  }
  void KillAndWait() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    EXPECT_EQ(::waitpid(pid_, nullptr, 0), pid_);
    pid_ = -1;
  }
  void Stop() {
    ::kill(pid_, SIGSTOP);
    EXPECT_EQ(::waitpid(pid_, nullptr, WUNTRACED), pid_);
  }

  MemberProcess process;

 private:
  pid_t pid_ = -1;
};

TEST(MemberProcessTest, AProcessThatRunsOrIsStoppedLives) {
  EXPECT_EQ(LookFor(MemberProcess::Self()), ProcessState::kLives);
  StoppedChild child;
  EXPECT_EQ(LookFor(child.process), ProcessState::kLives);
  child.Stop();
  EXPECT_EQ(LookFor(child.process), ProcessState::kLives);
}

TEST(MemberProcessTest, AProcessThatWasKilledIsGoneBeforeItsParentNotices) {
  StoppedChild child;
  child.Kill();
  EXPECT_EQ(LookFor(child.process), ProcessState::kGone);
  child.KillAndWait();
  EXPECT_EQ(LookFor(child.process), ProcessState::kGone);
}

TEST(MemberProcessTest, AnotherProcessWithTheSamePidIsNotTaken) {
  MemberProcess earlier = MemberProcess::Self();
  --earlier.started;
  EXPECT_EQ(LookFor(earlier), ProcessState::kGone);
}

TEST(MemberProcessTest, ProcessesOfOtherMachinesAndContainersCannotBeSeen) {
  MemberProcess machine = MemberProcess::Self(), container = machine, unknown = machine;
  machine.boot_id = "another";
  ++container.pid_namespace;
  unknown.boot_id = "";
  for (const MemberProcess& process : {machine, container, unknown, MemberProcess()})
    EXPECT_EQ(LookFor(process), ProcessState::kElsewhere);
}

TEST(MemberProcessTest, NamesOfAnyLengthAndBytesAreSentAsText) {
  v1::MemberProcess hostile;
  hostile.set_host(std::string(1000, 'h'));
  const MemberProcess process = MemberProcess::FromProto(hostile);
  EXPECT_EQ(process.host.size(), 256u);
  MemberProcess cut = process;
  cut.host = "node-\xff";
  v1::MemberProcess parsed;
  EXPECT_TRUE(parsed.ParseFromString(cut.ToProto().SerializeAsString()));
}

}  // namespace
}  // namespace tandem::cluster
