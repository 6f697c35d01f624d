// SPDX-License-Identifier: Apache-2.0
// One file and several processes: processes killed in the middle of a change, full disks, files of another
// kind.

#include "cluster/store/file_store.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/read_file.h"
#include "tests/testing/processes/self_process.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::cluster {
namespace {

using ::tandem::testing::StatusIs;
using ::tandem::testing::TempDir;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kTestTimeout = absl::Seconds(60);

// Runs this binary as another process, in one of the DISABLED tests below.
struct Child : testing::SelfProcess {
  Child(const std::string& test, const std::string& path, int number)
      : SelfProcess("FileStoreChild.DISABLED_" + test,
                    {{"TANDEM_TEST_STORE", path}, {"TANDEM_TEST_NUMBER", absl::StrCat(number)}}) {}
};

std::unique_ptr<FileStore> OpenAsChild(int* number) {
  const char* path = std::getenv("TANDEM_TEST_STORE");
  TANDEM_CHECK(path != nullptr && absl::SimpleAtoi(std::getenv("TANDEM_TEST_NUMBER"), number));
  return FileStore::Open(path).value();
}

constexpr int kAdds = 200;

TEST(FileStoreChild, DISABLED_Adds) {
  int number = 0;
  auto store = OpenAsChild(&number);
  for (int i = 0; i < kAdds; ++i) TANDEM_ASSERT_OK(store->Add("sum", 1));
  TANDEM_ASSERT_OK(store->Set(absl::StrCat("done/", number), ""));
}

// Changes three keys together until it is killed: long records, so that a kill falls into a write.
TEST(FileStoreChild, DISABLED_WritesForEver) {
  int number = 0;
  auto store = OpenAsChild(&number);
  for (int i = 0;; ++i) {
    const std::string value = absl::StrCat(i, ":", std::string(100000, static_cast<char>('a' + i % 26)));
    const std::string prefix = absl::StrCat("writer/", number, "/");
    TANDEM_ASSERT_OK(store->MultiSet({prefix + "1", prefix + "2", prefix + "3"}, {value, value, value}));
    TANDEM_ASSERT_OK(store->Add("changes", 1));
  }
}

TEST(FileStoreChild, DISABLED_PopsAndCounts) {
  int number = 0;
  auto store = OpenAsChild(&number);
  while (true) {
    TANDEM_ASSERT_OK_AND_ASSIGN(const std::string item, store->Pop("work", kTestTimeout));
    if (item == "end") return;
    TANDEM_ASSERT_OK(store->Add("popped/" + item, 1));
  }
}

TEST(FileStoreTest, ProcessesLoseNoAddition) {
  TempDir directory;
  TANDEM_ASSERT_OK_AND_ASSIGN(auto store, FileStore::Open(directory.File("s")));
  Child a("Adds", directory.File("s"), 0), b("Adds", directory.File("s"), 1),
      c("Adds", directory.File("s"), 2);
  TANDEM_EXPECT_OK(store->Wait({"done/0", "done/1", "done/2"}, kTestTimeout));
  EXPECT_EQ(store->Add("sum", 0).value(), 3 * kAdds);
  EXPECT_EQ(a.Wait() + b.Wait() + c.Wait(), 0);
}

TEST(FileStoreTest, ProcessesShareAQueueAndEachItemGoesToOne) {
  constexpr int kItems = 150;
  TempDir directory;
  TANDEM_ASSERT_OK_AND_ASSIGN(auto store, FileStore::Open(directory.File("s")));
  std::vector<std::unique_ptr<Child>> children;
  for (int i = 0; i < 3; ++i)
    children.push_back(std::make_unique<Child>("PopsAndCounts", directory.File("s"), i));
  for (int i = 0; i < kItems; ++i) TANDEM_ASSERT_OK(store->Push("work", absl::StrCat(i)));
  for (int i = 0; i < 3; ++i) TANDEM_ASSERT_OK(store->Push("work", "end"));
  for (auto& child : children) EXPECT_EQ(child->Wait(), 0);
  for (int i = 0; i < kItems; ++i)
    EXPECT_EQ(store->Get(absl::StrCat("popped/", i), kTestTimeout).value(), "1");
}

// Invariant: the three keys hold equal values whenever they are read, even if a writer was killed while
// writing them.
TEST(FileStoreTest, WritersThatAreKilledLeaveWholeChangesOnly) {
  TempDir directory;
  TANDEM_ASSERT_OK_AND_ASSIGN(auto store, FileStore::Open(directory.File("s")));
  int64_t changes = 0;
  for (int round = 0; round < 4; ++round) {
    Child first("WritesForEver", directory.File("s"), 0), second("WritesForEver", directory.File("s"), 1);
    // Both writers are running, and the moment of the kill differs from round to round.
    const int64_t enough = changes + 4 + round;
    const absl::Time deadline = absl::Now() + kTestTimeout;
    while (changes < enough && absl::Now() < deadline) {
      TANDEM_ASSERT_OK_AND_ASSIGN(const std::string text, store->Get("changes", kTestTimeout));
      ASSERT_TRUE(absl::SimpleAtoi(text, &changes));
    }
    ASSERT_GE(changes, enough);
    first.Kill();
    second.Kill();
    TANDEM_ASSERT_OK(store->Set("still", "works"));
    for (int writer : {0, 1}) {
      const std::string prefix = absl::StrCat("writer/", writer, "/");
      TANDEM_ASSERT_OK_AND_ASSIGN(const bool wrote, store->Check({prefix + "1"}));
      if (!wrote) continue;
      TANDEM_ASSERT_OK_AND_ASSIGN(auto values,
                                  store->MultiGet({prefix + "1", prefix + "2", prefix + "3"}, kTestTimeout));
      EXPECT_EQ(values[0], values[1]);
      EXPECT_EQ(values[1], values[2]);
    }
    // A process that opens the file now reads it from its beginning.
    TANDEM_ASSERT_OK_AND_ASSIGN(auto late, FileStore::Open(directory.File("s")));
    EXPECT_EQ(late->Get("still", absl::ZeroDuration()).value(), "works");
  }
}

// Every possible torn end: the file is cut at each byte of its last record, or followed by part of one.
TEST(FileStoreTest, ATornLastRecordIsIgnoredAndHealed) {
  TempDir directory;
  const std::string path = directory.File("s");
  TANDEM_ASSERT_OK_AND_ASSIGN(auto first, FileStore::Open(path));
  TANDEM_ASSERT_OK(first->Set("kept", "1"));
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string before, ReadFile(path));
  TANDEM_ASSERT_OK(first->Set("torn", "2"));
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string after, ReadFile(path));
  for (size_t size = before.size() + 1; size < after.size(); ++size) {
    const std::string copy = directory.File(absl::StrCat("copy", size));
    std::ofstream(copy, std::ios::binary) << after.substr(0, size);
    TANDEM_ASSERT_OK_AND_ASSIGN(auto store, FileStore::Open(copy));
    EXPECT_EQ(store->Get("kept", absl::ZeroDuration()).value(), "1");
    EXPECT_FALSE(store->Check({"torn"}).value());
    TANDEM_ASSERT_OK(store->Set("torn", "3"));
    TANDEM_ASSERT_OK_AND_ASSIGN(auto other, FileStore::Open(copy));
    EXPECT_EQ(other->Get("torn", absl::ZeroDuration()).value(), "3");
  }
}

// Fills the store at `path` with two keys, and overwrites the byte `before_value` bytes before the first
// value.
void MakeDamaged(const std::string& path, size_t before_value, char byte) {
  {
    TANDEM_ASSERT_OK_AND_ASSIGN(auto store, FileStore::Open(path));
    TANDEM_ASSERT_OK(store->Set("a", "1234"));
    TANDEM_ASSERT_OK(store->Set("b", "5678"));
  }
  const size_t value = ReadFile(path).value().find("1234");
  ASSERT_NE(value, std::string::npos);
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(static_cast<std::streamoff>(value - before_value));
  file << byte;
}

TEST(FileStoreTest, DamageInTheMiddleIsNamedNotSkipped) {
  TempDir directory;
  const std::string path = directory.File("s");
  MakeDamaged(path, 0, '9');
  EXPECT_THAT(FileStore::Open(path), StatusIs(absl::StatusCode::kDataLoss, HasSubstr(path)));
}

TEST(FileStoreTest, ADamagedSizeIsNotTakenForATornEndThatIsCutOff) {
  TempDir directory;
  const std::string path = directory.File("s");
  constexpr size_t kBeforeValue = 12 + 1 + 4 + 1 + 4;  // the record's header, kind, key and the value's size
  MakeDamaged(path, kBeforeValue - 3, '\x7f');         // the size's highest byte
  EXPECT_THAT(FileStore::Open(path), StatusIs(absl::StatusCode::kDataLoss, HasSubstr(path)));
  EXPECT_THAT(ReadFile(path).value(), HasSubstr("5678"));
}

TEST(FileStoreTest, AFileOfSomethingElseIsLeftAsItIs) {
  TempDir directory;
  const std::string path = directory.File("letter");
  std::ofstream(path) << "Dear all";
  EXPECT_THAT(FileStore::Open(path),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("no store file")));
  EXPECT_EQ(ReadFile(path).value(), "Dear all");
  EXPECT_THAT(FileStore::Open(directory.path()),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(directory.path())));
  EXPECT_THAT(FileStore::Open(directory.File("no/such/dir")),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no/such/dir")));
  EXPECT_THAT(FileStore::Open("/proc/store"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/proc/store")));
}

TEST(FileStoreTest, APathThatMayNotBeWrittenIsNamed) {
  if (geteuid() == 0) {
    // Root may write everywhere except into a read-only file system.
    TempDir directory;
    if (mount("none", directory.path().c_str(), "tmpfs", MS_RDONLY, "size=64k") != 0) {
      GTEST_SKIP() << "may not mount a file system here";
    }
    EXPECT_THAT(FileStore::Open(directory.File("s")),
                StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr(directory.path())));
    umount(directory.path().c_str());
    return;
  }
  EXPECT_THAT(FileStore::Open("/store"), StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("/store")));
}

TEST(FileStoreTest, AFullDiskIsNamedAndLeavesTheStoreAsItWas) {
  TempDir directory;
  if (mount("none", directory.path().c_str(), "tmpfs", 0, "size=256k") != 0) {
    GTEST_SKIP() << "may not mount a small file system here: run as root to test a full disk";
  }
  {
    auto opened = FileStore::Open(directory.File("s"));
    auto other = FileStore::Open(directory.File("s"));
    TANDEM_EXPECT_OK(opened);
    TANDEM_EXPECT_OK(other);
    if (opened.ok() && other.ok()) {
      FileStore& store = **opened;
      TANDEM_EXPECT_OK(store.Set("a", "1"));
      EXPECT_THAT(store.Set("a", std::string(1 << 20, 'x')),
                  StatusIs(absl::StatusCode::kResourceExhausted,
                           AllOf(HasSubstr(directory.path()), HasSubstr("No space left"))));
      EXPECT_EQ(store.Get("a", absl::ZeroDuration()).value(), "1");
      EXPECT_EQ((*other)->Get("a", absl::ZeroDuration()).value(), "1");
      TANDEM_EXPECT_OK(store.Set("a", "2"));
      EXPECT_EQ((*other)->Get("a", absl::ZeroDuration()).value(), "2");
    }
  }
  umount(directory.path().c_str());
}

// These are the constants of linux/fs.h, which cannot be included together with sys/mount.h.
constexpr unsigned long kGetFlags = _IOR('f', 1, long), kSetFlags = _IOW('f', 2, long);
constexpr int kAppendOnly = 0x20;

TEST(FileStoreTest, AChangeThatCanBeNeitherWrittenNorRemovedMayHaveHappened) {
  TempDir directory;
  const std::string path = directory.File("s");
  TANDEM_ASSERT_OK_AND_ASSIGN(auto store, FileStore::Open(path));
  TANDEM_ASSERT_OK(store->Set("a", "1"));
  // An append-only file cannot be cut.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  int flags = 0;
  const auto set_flags = [fd](int value) { return ioctl(fd, kSetFlags, &value); };
  if (ioctl(fd, kGetFlags, &flags) != 0 || set_flags(flags | kAppendOnly) != 0) {
    close(fd);
    GTEST_SKIP() << "may not make a file append-only here";
  }
  rlimit before;
  getrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, SIG_IGN);
  rlimit small = before;
  small.rlim_cur = std::filesystem::file_size(path) + 100;
  setrlimit(RLIMIT_FSIZE, &small);
  const absl::Status written = store->Set("a", std::string(4096, 'x'));
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, SIG_DFL);
  set_flags(flags);
  close(fd);
  EXPECT_THAT(written, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("it is unknown whether")));
  EXPECT_EQ(store->Get("a", absl::ZeroDuration()).value(), "1");
  TANDEM_ASSERT_OK(store->Set("a", "2"));
  TANDEM_ASSERT_OK_AND_ASSIGN(auto other, FileStore::Open(path));
  EXPECT_EQ(other->Get("a", absl::ZeroDuration()).value(), "2");
}

bool Exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

TEST(FileStoreTest, TheLastOfItsUsersRemovesTheFile) {
  TempDir directory;
  const std::string path = directory.File("s");
  FileStoreOptions options;
  options.users = 2;
  TANDEM_ASSERT_OK_AND_ASSIGN(auto first, FileStore::Open(path, options));
  TANDEM_ASSERT_OK(first->Set("a", "1"));
  first.reset();
  EXPECT_TRUE(Exists(path)) << "the second user has not come";
  TANDEM_ASSERT_OK_AND_ASSIGN(auto second, FileStore::Open(path, options));
  TANDEM_ASSERT_OK_AND_ASSIGN(auto again, FileStore::Open(path, options));
  EXPECT_EQ(second->Get("a", absl::ZeroDuration()).value(), "1");
  second.reset();
  EXPECT_TRUE(Exists(path)) << "somebody still uses it";
  again.reset();
  EXPECT_FALSE(Exists(path));
}

TEST(FileStoreTest, WhatAKilledJobLeftIsDiscardedOnlyWhenNobodyUsesIt) {
  TempDir directory;
  const std::string path = directory.File("s");
  FileStoreOptions options;
  options.clear_abandoned = true;
  {
    TANDEM_ASSERT_OK_AND_ASSIGN(auto watcher, FileStore::Open(path));
    Child writer("WritesForEver", path, 0);
    TANDEM_EXPECT_OK(watcher->Wait({"changes"}, kTestTimeout));
    writer.Kill();
    TANDEM_ASSERT_OK_AND_ASSIGN(auto joined, FileStore::Open(path, options));
    EXPECT_TRUE(joined->Check({"changes"}).value());
  }
  TANDEM_ASSERT_OK_AND_ASSIGN(auto fresh, FileStore::Open(path, options));
  EXPECT_EQ(fresh->NumKeys().value(), 0);
  TANDEM_ASSERT_OK(fresh->Set("a", "1"));
  TANDEM_ASSERT_OK_AND_ASSIGN(auto second, FileStore::Open(path, options));
  EXPECT_EQ(second->NumKeys().value(), 1);
}

TEST(FileStoreTest, ARemovedFileIsNamedAndALockedOneHasADeadline) {
  TempDir directory;
  const std::string path = directory.File("s");
  FileStoreOptions options;
  options.lock_timeout = absl::Milliseconds(50);
  TANDEM_ASSERT_OK_AND_ASSIGN(auto store, FileStore::Open(path, options));
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_len = 1;
  ASSERT_EQ(fcntl(fd, F_OFD_SETLK, &lock), 0);
  EXPECT_THAT(store->Set("a", "1"), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("stays locked")));
  close(fd);
  TANDEM_ASSERT_OK(store->Set("a", "1"));
  unlink(path.c_str());
  EXPECT_THAT(store->Set("a", "2"), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("removed")));
  EXPECT_THAT(store->Get("b", kTestTimeout), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("removed")));
}

}  // namespace
}  // namespace tandem::cluster
