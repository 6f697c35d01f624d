// SPDX-License-Identifier: Apache-2.0
#include "cluster/membership/beat.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "tests/testing/status_matchers.h"

namespace tandem::cluster {
namespace {

constexpr absl::Duration kPeriod = absl::Milliseconds(5);

// A process that runs `body` with TANDEM_BEAT_FD=`value`, and then waits. Killed by the destructor.
class Child {
 public:
  Child(const std::string& value, const std::function<void()>& body) : pid_(::fork()) {
    if (pid_ != 0) return;
    ::setenv(kBeatVariable, value.c_str(), 1);
    body();
    for (;;) ::pause();
  }
  ~Child() { End(); }
  pid_t pid() const { return pid_; }
  // Returns the child's status as of waitpid.
  int End(int signal = SIGKILL) {
    int status = 0;
    if (pid_ <= 0) return status;
    ::kill(pid_, signal);
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return status;
  }
  // Waits until it ends by itself. Returns its exit code; -1 if it was killed.
  int Wait() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t pid_;
};

bool Await(const std::function<bool()>& condition) {
  for (const absl::Time end = MonotonicNow() + absl::Seconds(60); MonotonicNow() < end;) {
    if (condition()) return true;
    absl::SleepFor(absl::Milliseconds(1));
  }
  return false;
}

class BeatTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto page = BeatPage::Create(kPeriod);
    ASSERT_TRUE(page.ok()) << page.status();
    page_ = *std::move(page);
    value_ = absl::StrCat(page_->descriptor());
  }
  // Waits until the counter is beyond its present value.
  bool Advances() {
    const uint64_t now = page_->count();
    return Await([&] { return page_->count() > now; });
  }
  std::unique_ptr<BeatPage> page_;
  std::string value_;
};

TEST_F(BeatTest, AProcessBeatsFromJoiningToItsEnd) {
  EXPECT_EQ(page_->count(), 0u);
  EXPECT_EQ(page_->Holder(), std::nullopt);
  Child child(value_, StartBeat);
  EXPECT_TRUE(Advances());
  EXPECT_TRUE(Advances());
  EXPECT_EQ(page_->Holder(), child.pid());
  child.End();
  EXPECT_EQ(page_->Holder(), std::nullopt);
}

TEST_F(BeatTest, AStoppedProcessKeepsThePageAndBeatsAgainWhenItGoesOn) {
  Child child(value_, StartBeat);
  ASSERT_TRUE(Advances());
  ASSERT_EQ(::kill(child.pid(), SIGSTOP), 0);
  int status = 0;
  ASSERT_EQ(::waitpid(child.pid(), &status, WUNTRACED), child.pid());
  ASSERT_TRUE(WIFSTOPPED(status));
  EXPECT_EQ(page_->Holder(), child.pid());
  ASSERT_EQ(::kill(child.pid(), SIGCONT), 0);
  EXPECT_TRUE(Advances());
}

TEST_F(BeatTest, AProcessThatHasNotJoinedHoldsNothing) {
  Child child(value_, [] {});
  EXPECT_EQ(page_->count(), 0u);
  EXPECT_EQ(page_->Holder(), std::nullopt);
}

TEST_F(BeatTest, AProgramThatTheProcessExecutesLaterDoesNotHoldThePage) {
  Child child(value_, [this] {
    StartBeat();
    while (page_->count() == 0) ::usleep(100);
    ::execl("/bin/sh", "sh", "-c", "while :; do sleep 60; done", nullptr);
    ::_exit(1);
  });
  ASSERT_TRUE(Await([&] { return page_->count() > 0; }));  // it may beat once only
  EXPECT_TRUE(Await([&] { return page_->Holder() == std::nullopt; }));
  EXPECT_EQ(::waitpid(child.pid(), nullptr, WNOHANG), 0);  // it runs
}

TEST_F(BeatTest, AProcessForkedLaterDoesNotHoldThePage) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  Child child(value_, [&] {
    StartBeat();
    while (page_->count() == 0) ::usleep(100);
    if (::fork() == 0) {
      StartBeat();  // as a library in it may do
      char byte;
      ::close(ends[1]);
      while (::read(ends[0], &byte, 1) > 0) continue;
      ::_exit(0);
    }
    ::_exit(7);
  });
  EXPECT_EQ(child.Wait(), 7);
  EXPECT_EQ(page_->Holder(), std::nullopt);
  ::close(ends[0]);
  ::close(ends[1]);  // ends the grandchild
}

TEST_F(BeatTest, AProgramThatAWaitingParentStartsHoldsThePage) {
  // As under a shell: the parent has the page and does not join.
  Child parent(value_, [this] {
    const pid_t program = ::fork();
    if (program == 0) {
      StartBeat();
      for (;;) ::pause();
    }
    while (page_->count() < 3) ::usleep(100);
    ::kill(program, SIGKILL);
    ::waitpid(program, nullptr, 0);
    ::_exit(page_->Holder() == std::nullopt ? 0 : 1);
  });
  EXPECT_EQ(parent.Wait(), 0);
  EXPECT_GE(page_->count(), 3u);
}

TEST_F(BeatTest, OfTwoProcessesTheSecondBeatsOnceTheFirstHasEnded) {
  Child first(value_, StartBeat);
  ASSERT_TRUE(Advances());
  Child second(value_, StartBeat);
  EXPECT_TRUE(Advances());
  EXPECT_EQ(page_->Holder(), first.pid());
  first.End();
  EXPECT_TRUE(Await([&] { return page_->Holder() == second.pid(); }));
  EXPECT_TRUE(Advances());
}

TEST_F(BeatTest, ADescriptorThatIsNoPageIsLeftAlone) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const auto other = ipc::MemoryFile::Create("other", 8);
  const auto alike = ipc::MemoryFile::Create("other", 24);
  ASSERT_TRUE(other.ok() && alike.ok());
  for (const std::string& value :
       {std::string(), std::string("abc"), std::string("-1"), std::string("99999"), absl::StrCat(ends[0]),
        absl::StrCat((*other)->descriptor()), absl::StrCat((*alike)->descriptor())}) {
    Child child(value, [&] {
      const auto flags = [&] { return ::fcntl(ends[0], F_GETFD); };
      const int before = flags();
      const auto threads = [] {
        return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
      };
      const auto threads_before = threads();
      StartBeat();
      ::_exit(flags() == before && threads() == threads_before ? 0 : 1);
    });
    EXPECT_EQ(child.Wait(), 0) << value;
  }
  ::close(ends[0]);
  ::close(ends[1]);
}

}  // namespace
}  // namespace tandem::cluster
