// SPDX-License-Identifier: Apache-2.0
#include "launcher/process/process_reaper.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "tests/testing/status_matchers.h"

namespace tandem::launcher {
namespace {

class ProcessReaperTest : public ::testing::Test {
 protected:
  void SetUp() override {
    // No process has this mark.
    TANDEM_ASSERT_OK_AND_ASSIGN(reaper_, ProcessReaper::Start(absl::StrCat("test-", ::getpid(), "-none;")));
    group_ = ::fork();
    ASSERT_GE(group_, 0);
    if (group_ == 0) {
      ::setpgid(0, 0);
      ::close(reaper_->fd());  // the reaper waits for the end of the last writer
      while (true) ::pause();
    }
    ::setpgid(group_, group_);
    ProcessReaper::Register(reaper_->fd(), group_);
  }
  void TearDown() override {
    if (reaper_ != nullptr) reaper_.reset();  // kills the group if nothing has
    if (group_ > 0 && !reaped_) ::waitpid(group_, nullptr, 0);
  }
  // Waits until the group has ended, or until the time-out of the test program.
  void ExpectEndedBy(int signal) {
    int status = 0;
    ASSERT_EQ(::waitpid(group_, &status, 0), group_);
    reaped_ = true;
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == signal);
  }

  std::unique_ptr<ProcessReaper> reaper_;
  pid_t group_ = -1;
  bool reaped_ = false;
};

TEST_F(ProcessReaperTest, GroupsAreKilledAtADeadlineThatIsNotPutOff) {
  reaper_->KillAt(MonotonicNow() + absl::Hours(1));
  reaper_->KillAt(MonotonicNow() + absl::Milliseconds(100));
  ExpectEndedBy(SIGKILL);
}

TEST_F(ProcessReaperTest, ADeadlineThatIsPutOffTooLateHasItsEffect) {
  // The second call comes after the first deadline, whenever the reaper reads them.
  reaper_->KillAt(MonotonicNow() - absl::Milliseconds(1));
  reaper_->KillAt(absl::InfiniteFuture());
  ExpectEndedBy(SIGKILL);
}

TEST_F(ProcessReaperTest, GroupsAreKilledWhenTheLauncherEnds) {
  reaper_->KillAt(absl::InfiniteFuture());
  reaper_.reset();
  ExpectEndedBy(SIGKILL);
}

TEST_F(ProcessReaperTest, AForgottenGroupIsNotKilled) {
  reaper_->Forget(group_);
  reaper_->KillAt(MonotonicNow() - absl::Milliseconds(1));
  reaper_.reset();  // it has read all messages
  ::kill(group_, SIGTERM);
  ExpectEndedBy(SIGTERM);
}

}  // namespace
}  // namespace tandem::launcher
