// SPDX-License-Identifier: Apache-2.0
// Runs die, are stopped, run out of disk and see clocks jump at random moments. Afterwards `--resume auto`
// continues the right run, which ends with the bits of a run that nothing has happened to.

#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/checkpoint/checkpoint_dir.h"
#include "tests/integration/job_dir.h"
#include "tests/testing/processes/tandem_process.h"
#include "tests/testing/random_seed.h"

namespace tandem::integration {
namespace {

using testing::Finished;
using testing::TandemProcess;

constexpr int kRestarts = 10;  // more than any moment needs

int Moments() {
  const char* text = std::getenv("TANDEM_STRESS_MOMENTS");
  int moments = 0;
  return text != nullptr && absl::SimpleAtoi(text, &moments) ? moments : 8;
}

enum class Event { kKill, kSigterm, kClockStep, kFullDisk };

const char* NameOf(Event event) {
  constexpr const char* kNames[] = {"kill -9", "SIGTERM", "a clock step and kill -9", "a full disk"};
  return kNames[static_cast<int>(event)];
}

// A file system of its own for one run, whose size can change.
class SmallDisk {
 public:
  explicit SmallDisk(std::string path) : path_(std::move(path)) {
    mounted_ =
        ::mkdir(path_.c_str(), 0755) == 0 && ::mount("none", path_.c_str(), "tmpfs", 0, "size=16m") == 0;
  }
  ~SmallDisk() {
    if (mounted_) ::umount2(path_.c_str(), MNT_DETACH);
  }
  bool mounted() const { return mounted_; }
  void Grow() { EXPECT_TRUE(Resize(uint64_t{16} << 20)); }
  // Leaves `bytes` bytes free. A size below what is in use is refused, and a process may write meanwhile.
  void LeaveFree(uint64_t bytes) {
    for (int attempt = 0; attempt < 100; ++attempt) {
      struct statvfs disk;
      ASSERT_EQ(::statvfs(path_.c_str(), &disk), 0);
      if (Resize((disk.f_blocks - disk.f_bfree) * disk.f_frsize + bytes)) return;
    }
    FAIL() << "the disk was never small enough";
  }

 private:
  bool Resize(uint64_t bytes) {
    return ::mount("none", path_.c_str(), "tmpfs", MS_REMOUNT, absl::StrCat("size=", bytes).c_str()) == 0;
  }

  const std::string path_;
  bool mounted_ = false;
};

class CheckpointStress : public ::testing::Test {
 protected:
  CheckpointStress() : job_(3000) {
    const uint64_t seed = testing::RandomSeed();
    random_ = std::make_unique<CounterRandom>(seed, 1);
    RecordProperty("seed", absl::StrCat(seed));
  }

  // `launched`: two servers and two workers, otherwise one process.
  Args Arguments(bool launched, const std::string& directory, const Args& more) const {
    Args args = {"train", "job.yaml"};
    const Args fields = {"--no-baselines",
                         "--set",
                         "train.epochs=3",
                         "--set",
                         "checkpoint.every_steps=2",
                         "--set",
                         "checkpoint.keep=2",
                         "--set",
                         absl::StrCat("train.batch_size=", launched ? 64 : 128),
                         "--set",
                         absl::StrCat("checkpoint.dir=", directory)};
    args.insert(args.end(), fields.begin(), fields.end());
    args.insert(args.end(), more.begin(), more.end());
    if (!launched) return args;
    Args with_launcher = {"run", "--ps",      "2",    "--workers", "2",     "--grace",
                          "30",  "--log-dir", "logs", "--",        "tandem"};
    with_launcher.insert(with_launcher.end(), args.begin(), args.end());
    return with_launcher;
  }
  std::vector<std::string> Paths(const std::string& directory) const {
    return ps::CheckpointPaths(job_.File(directory)).value_or(std::vector<std::string>());
  }
  // Returns rows and dense parameters of the newest checkpoint.
  std::string Digest(const std::string& directory) const {
    const absl::StatusOr<std::string> path = ps::LatestCheckpoint(job_.File(directory));
    return path.ok() ? job_.Digest(*path) : path.status().ToString();
  }
  // Waits for a random moment of a run, which would take about `most`. This is the only way to meet a process
  // at a place of which it does not tell.
  void AwaitRandomMoment(absl::Duration most) { absl::SleepFor(most * random_->UniformDouble()); }

  // Lets a run meet the event at a random moment, then resumes it until it has finished.
  void Meet(Event event, bool launched, const std::string& directory, const std::string& expected);

  const JobDir job_;
  std::unique_ptr<CounterRandom> random_;
  absl::Duration duration_[2];  // of a run without events: alone, launched
};

void CheckpointStress::Meet(Event event, bool launched, const std::string& directory,
                            const std::string& expected) {
  std::map<std::string, std::string> variables = job_.Mark();
  std::unique_ptr<SmallDisk> disk;
  if (event == Event::kFullDisk) {
    disk = std::make_unique<SmallDisk>(job_.File(directory));
    if (!disk->mounted()) return;  // no right to mount; reported once by the caller
  }
  if (event == Event::kClockStep) {
    variables["LD_PRELOAD"] = TANDEM_CLOCK_STEP_LIBRARY;
    const int64_t seconds = static_cast<int64_t>(random_->Below(2 * 86400)) - 86400;
    variables["TEST_CLOCK_STEP"] = absl::StrCat(random_->Below(2000), " ", seconds);
  }
  std::set<std::string> run_ids;
  for (int start = 0; start < kRestarts; ++start) {
    Args more;
    if (!Paths(directory).empty()) more = {"--resume", "auto"};
    SCOPED_TRACE(absl::StrCat("start ", start, more.empty() ? " from scratch" : " --resume auto"));
    TandemProcess process(Arguments(launched, directory, more), variables, job_.File("."));
    if (start == 0) {
      AwaitRandomMoment(duration_[launched]);
      switch (event) {
        case Event::kKill:
        case Event::kClockStep: {
          // Any process of the job.
          const char* const victims[] = {"RANK=0", "RANK=1", "TANDEM_PS_INDEX=0", "TANDEM_PS_INDEX=1"};
          const pid_t victim = launched ? job_.ProcessWith(victims[random_->Below(4)]) : 0;
          if (victim > 0) {
            ::kill(victim, SIGKILL);
          } else {
            process.Signal(SIGKILL);
          }
          break;
        }
        case Event::kSigterm: {
          const pid_t victim = launched ? job_.ProcessWith(random_->Below(2) == 0 ? "RANK=0" : "RANK=1") : 0;
          if (victim > 0) {
            ::kill(victim, SIGTERM);
          } else {
            process.Signal(SIGTERM);
          }
          break;
        }
        case Event::kFullDisk:
          disk->LeaveFree((4 + random_->Below(200)) << 10);
          break;
      }
    }
    const int code = process.Wait();
    EXPECT_TRUE(job_.NoLeaks());
    if (disk != nullptr) disk->Grow();
    variables.erase("TEST_CLOCK_STEP");
    for (const std::string& path : Paths(directory)) {
      const absl::StatusOr<ps::v1::CheckpointManifest> manifest = ps::ReadManifest(path);
      ASSERT_TRUE(manifest.ok()) << manifest.status();
      run_ids.insert(manifest->run_id());
    }
    EXPECT_LE(run_ids.size(), 1u);
    if (start > 0) {
      ASSERT_EQ(code, 0) << process.out() << process.err();
    }
    if (code == 0) {
      EXPECT_EQ(Digest(directory), expected) << process.err();
      return;
    }
  }
  ADD_FAILURE() << "the run has not finished after " << kRestarts << " starts";
}

TEST_F(CheckpointStress, TheRightRunGoesOnAfterEveryEvent) {
  std::string expected[2];
  for (const bool launched : {false, true}) {
    const std::string directory = absl::StrCat("straight", launched);
    const absl::Time began = absl::Now();
    const Finished finished = job_.Run(Arguments(launched, directory, {}));
    ASSERT_EQ(finished.exit_code, 0) << finished.err;
    duration_[launched] = absl::Now() - began;
    expected[launched] = Digest(directory);
  }
  const int moments = Moments();
  for (int moment = 0; moment < moments && !HasFatalFailure(); ++moment) {
    const Event event = static_cast<Event>(moment % 4);
    // Starting four processes takes most of the time of a launched run.
    const bool launched = event != Event::kFullDisk && moment / 4 % 2 == 1;
    SCOPED_TRACE(absl::StrCat("moment ", moment, ": ", NameOf(event), launched ? ", launched" : ", alone"));
    Meet(event, launched, absl::StrCat("moment", moment), expected[launched]);
    if (HasFailure()) break;
    std::error_code ignored;
    std::filesystem::remove_all(job_.File(absl::StrCat("moment", moment)), ignored);
  }
}

}  // namespace
}  // namespace tandem::integration
