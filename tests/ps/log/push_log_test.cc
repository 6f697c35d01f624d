// SPDX-License-Identifier: Apache-2.0
#include "ps/log/push_log.h"

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/log/log_reader.h"
#include "tests/ps/log/fake_file_system.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::ps {
namespace {

using tandem::testing::StatusIs;
using ::testing::AllOf;
using testing::FakeFileSystem;
using ::testing::HasSubstr;

constexpr char kDirectory[] = "/log";
constexpr uint64_t kSmallSegment = 1024;

PushLog::Options OptionsOf(FileSystem* files, uint64_t term = 1, const std::string& directory = kDirectory) {
  PushLog::Options options{.files = files, .directory = directory, .segment_bytes = kSmallSegment};
  options.header.set_format_version(1);
  options.header.set_term(term);
  options.header.set_synced(true);
  options.retry = absl::Milliseconds(1);
  return options;
}

std::string BodyOf(uint64_t position) { return absl::StrCat("body of ", position, std::string(40, 'x')); }

struct Content {
  std::vector<std::pair<uint64_t, std::string>> records;
  LogEnd end;
};
absl::StatusOr<Content> ReadAll(FileSystem& files, uint64_t after = 0, bool accept_loss = false,
                                const std::string& directory = kDirectory) {
  Content content;
  TANDEM_ASSIGN_OR_RETURN(const LogSegments segments, ListSegments(files, directory));
  TANDEM_ASSIGN_OR_RETURN(content.end,
                          ReadLog(files, segments.segments, after, accept_loss, [&](const Record& record) {
                            content.records.emplace_back(record.position, record.body);
                            return absl::OkStatus();
                          }));
  return content;
}

// Blocks until everything that was appended is durable, also if that waits for room on a full disk.
absl::Status AwaitDurable(PushLog* log) {
  absl::Status result;
  absl::Notification done;
  log->WhenDurable([&](const absl::Status& status) {
    result = status;
    done.Notify();
  });
  done.WaitForNotification();
  return result;
}

// Appends `count` records, of which it awaits each third, until one is refused. Adds the positions that were
// acknowledged to `durable`.
void AppendSome(PushLog* log, int count, std::set<uint64_t>* durable) {
  absl::Mutex mutex;
  for (int i = 0; i < count; ++i) {
    const uint64_t next = log->last_position() + 1;
    log->Append(RecordKind::kPush, Bytes(BodyOf(next)), nullptr,
                [&mutex, durable, next](const absl::Status& ok) {
                  absl::MutexLock lock(&mutex);
                  if (ok.ok()) durable->insert(next);
                });
    if (i % 3 == 2 && !AwaitDurable(log).ok()) break;
  }
  log->Stop();
}

TEST(PushLog, ReadsBackWhatWasAppendedInManySegments) {
  const tandem::testing::TempDir scratch;
  const std::string& directory = scratch.path();
  TANDEM_ASSERT_OK_AND_ASSIGN(auto log, PushLog::Open(OptionsOf(PosixFileSystem(), 1, directory), 1));
  std::set<uint64_t> durable;
  AppendSome(log.get(), 100, &durable);
  EXPECT_EQ(durable.size(), 100u);
  TANDEM_ASSERT_OK_AND_ASSIGN(const Content content, ReadAll(*PosixFileSystem(), 40, false, directory));
  ASSERT_EQ(content.records.size(), 60u);
  for (size_t i = 0; i < content.records.size(); ++i) {
    EXPECT_EQ(content.records[i].first, 41 + i);
    EXPECT_EQ(content.records[i].second, BodyOf(41 + i));
  }
  EXPECT_EQ(content.end.position, 100u);
  TANDEM_ASSERT_OK_AND_ASSIGN(const LogSegments segments, ListSegments(*PosixFileSystem(), directory));
  EXPECT_EQ(segments.term, 1u);
  log->RemoveUpTo(40).IgnoreError();
  TANDEM_EXPECT_OK(ReadAll(*PosixFileSystem(), 40, false, directory));
  EXPECT_THAT(ReadAll(*PosixFileSystem(), 3, false, directory),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("missing")));
}

TEST(PushLog, AtEveryCutOfTheDiskKeepsWhatItHasAcknowledged) {
  bool cut = true;
  for (uint64_t operations = 0; cut; ++operations) {
    FakeFileSystem files;
    std::set<uint64_t> durable;
    uint64_t last = 0;
    // Each life of the server is cut once more.
    for (uint64_t term = 1; term <= 3; ++term) {
      files.CutAfter(operations + term);
      if (absl::StatusOr<std::unique_ptr<PushLog>> log = PushLog::Open(OptionsOf(&files, term), last + 1);
          log.ok()) {
        AppendSome(log->get(), 40, &durable);
      }
      cut = files.cut();
      files.LosePower(operations * 16 + term);
      TANDEM_ASSERT_OK_AND_ASSIGN(const LogSegments segments, ListSegments(files, kDirectory));
      for (const std::string& path : segments.unfinished) TANDEM_ASSERT_OK(files.Remove(path));
      TANDEM_ASSERT_OK(files.SyncDirectory(kDirectory));
      TANDEM_ASSERT_OK_AND_ASSIGN(const Content content, ReadAll(files));
      uint64_t next = 1;
      for (const auto& [position, body] : content.records) {
        ASSERT_EQ(position, next++);
        ASSERT_EQ(body, BodyOf(position));
      }
      last = content.end.position;
      ASSERT_GE(last, durable.empty() ? 0 : *durable.rbegin()) << "cut " << operations << " term " << term;
      // As Recover does: what was read counts from now on.
      for (const LogSegment& segment : segments.segments) TANDEM_ASSERT_OK(files.SyncFile(segment.path));
    }
  }
}

TEST(PushLog, ABadRecordIsTheEndOnlyWhereNothingFollows) {
  FakeFileSystem files;
  std::set<uint64_t> durable;
  TANDEM_ASSERT_OK_AND_ASSIGN(auto log, PushLog::Open(OptionsOf(&files), 1));
  AppendSome(log.get(), 30, &durable);
  const std::vector<std::string> paths = files.Paths("/log/log-");
  ASSERT_GT(paths.size(), 2u);
  const auto flip = [&](const std::string& path, uint64_t position) {
    files.Change(path, [&](std::string* content) {
      const size_t at = content->find(absl::StrCat("body of ", position, "x"));
      ASSERT_NE(at, std::string::npos) << path;
      (*content)[at + 20] ^= 1;
    });
  };
  flip(paths.back(), 30);
  TANDEM_ASSERT_OK_AND_ASSIGN(Content content, ReadAll(files));
  EXPECT_EQ(content.end.position, 29u);
  flip(paths.back(), 30);
  flip(paths.front(), 3);
  EXPECT_THAT(ReadAll(files), StatusIs(absl::StatusCode::kDataLoss,
                                       AllOf(HasSubstr("record 3 at byte"), HasSubstr("--accept-loss"))));
  TANDEM_ASSERT_OK_AND_ASSIGN(content, ReadAll(files, 0, /*accept_loss=*/true));
  EXPECT_EQ(content.end.position, 2u);
  EXPECT_EQ(content.end.behind.size(), paths.size() - 1);
}

TEST(PushLog, ABadRecordInTheLastSegmentIsDamageIfALaterOneCallsItSafe) {
  FakeFileSystem files;
  PushLog::Options options = OptionsOf(&files);
  options.segment_bytes = 1 << 16;
  std::set<uint64_t> durable;
  TANDEM_ASSERT_OK_AND_ASSIGN(auto log, PushLog::Open(options, 1));
  AppendSome(log.get(), 9, &durable);
  files.Change(files.Paths("/log/log-")[0],
               [](std::string* content) { (*content)[content->find("body of 2x")] ^= 1; });
  EXPECT_THAT(ReadAll(files), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("record 2 at byte")));
}

TEST(PushLog, NothingIsAcknowledgedBeforeItsSync) {
  FakeFileSystem files;
  TANDEM_ASSERT_OK_AND_ASSIGN(auto log, PushLog::Open(OptionsOf(&files), 1));
  files.HoldSyncs(true);
  absl::Notification first, all;
  log->Append(RecordKind::kPush, Bytes(BodyOf(1)), nullptr, [&](const absl::Status&) { first.Notify(); });
  log->WhenDurable([&](const absl::Status& status) {
    TANDEM_EXPECT_OK(status);
    EXPECT_TRUE(first.HasBeenNotified());
    all.Notify();
  });
  EXPECT_FALSE(first.HasBeenNotified());
  EXPECT_FALSE(all.HasBeenNotified());
  files.HoldSyncs(false);
  all.WaitForNotification();
  EXPECT_EQ(log->statistics().durable_position, 1u);
}

TEST(PushLog, ASmallQueueGivesSpaceInOrderAndOneRecordAlwaysFits) {
  FakeFileSystem files;
  PushLog::Options options = OptionsOf(&files);
  options.max_queued_bytes = 100;
  TANDEM_ASSERT_OK_AND_ASSIGN(auto log, PushLog::Open(options, 1));
  std::shared_ptr<PushLog::Space> first = log->TakeSpace(1000);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(log->TakeSpace(1), nullptr);
  std::vector<int> granted;
  std::vector<std::shared_ptr<PushLog::Space>> held;
  for (int i = 0; i < 3; ++i) {
    log->AwaitSpace(50, [&granted, &held, i](std::shared_ptr<PushLog::Space> space) {
      granted.push_back(i);
      held.push_back(std::move(space));
    });
  }
  EXPECT_TRUE(granted.empty());
  first.reset();
  EXPECT_THAT(granted, ::testing::ElementsAre(0, 1));
  held[0].reset();
  EXPECT_THAT(granted, ::testing::ElementsAre(0, 1, 2));
  EXPECT_EQ(log->statistics().waits, 3u);
  held.clear();
}

TEST(PushLog, AFullDiskHoldsRecordsUpUntilThereIsRoom) {
  FakeFileSystem files;
  files.set_capacity(kSmallSegment);
  TANDEM_ASSERT_OK_AND_ASSIGN(auto log, PushLog::Open(OptionsOf(&files), 1));
  std::atomic<int> durable{0};
  absl::Notification all;
  constexpr int kRecords = 40;
  for (uint64_t i = 1; i <= kRecords; ++i) {
    log->Append(RecordKind::kPush, Bytes(BodyOf(i)), nullptr, [&](const absl::Status& status) {
      TANDEM_EXPECT_OK(status);
      if (++durable == kRecords) all.Notify();
    });
  }
  while (log->waiting_for().empty()) std::this_thread::yield();
  EXPECT_THAT(log->waiting_for(), HasSubstr("full"));
  EXPECT_FALSE(all.HasBeenNotified());
  files.set_capacity(1 << 20);
  all.WaitForNotification();
  EXPECT_EQ(log->waiting_for(), "");
  TANDEM_ASSERT_OK_AND_ASSIGN(const Content content, ReadAll(files));
  EXPECT_EQ(content.end.position, uint64_t{kRecords});
}

TEST(PushLog, AFailedSyncFailsTheLogForGood) {
  FakeFileSystem files;
  PushLog::Options options = OptionsOf(&files);
  std::atomic<int> failures{0};
  options.on_failure = [&](const absl::Status& why) {
    EXPECT_THAT(why, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("the disk has failed")));
    ++failures;
  };
  TANDEM_ASSERT_OK_AND_ASSIGN(auto log, PushLog::Open(options, 1));
  files.FailSyncs();
  for (int i = 0; i < 2; ++i) {
    absl::Notification answered;
    log->Append(RecordKind::kPush, Bytes(BodyOf(1)), nullptr, [&](const absl::Status& status) {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("takes no more records")));
      answered.Notify();
    });
    answered.WaitForNotification();
  }
  EXPECT_THAT(AwaitDurable(log.get()), StatusIs(absl::StatusCode::kUnavailable));
  log->Stop();
  EXPECT_EQ(failures, 1);
}

TEST(PushLog, ASegmentOfANewerVersionIsRefusedByName) {
  FakeFileSystem files;
  PushLog::Options options = OptionsOf(&files);
  options.header.set_format_version(2);
  { TANDEM_ASSERT_OK_AND_ASSIGN(auto log, PushLog::Open(options, 1)); }
  EXPECT_THAT(ListSegments(files, kDirectory).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("format 2")));
}

TEST(PosixFileSystem, ALinkInADirectoryOfSomebodyElseIsNeitherReadNorOverwritten) {
  const tandem::testing::TempDir scratch;
  const std::string victim = scratch.File("victim"), link = scratch.File("link");
  std::ofstream(victim) << "precious";
  std::filesystem::create_symlink(victim, link);
  FileSystem& files = *PosixFileSystem();
  const auto refused = StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("link is a symbolic link"));
  EXPECT_THAT(files.Create(link, 0).status(), refused);
  EXPECT_THAT(files.Read(link, 0, 8).status(), refused);
  EXPECT_THAT(files.RewriteFile(link), refused);
  EXPECT_THAT(files.SyncFile(link), refused);
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string left, files.Read(victim, 0, 8));
  EXPECT_EQ(left, "precious");
  // A pipe has no end.
  ASSERT_EQ(::mkfifo(scratch.File("pipe").c_str(), 0600), 0);
  EXPECT_THAT(files.Read(scratch.File("pipe"), 0, 8).status(), StatusIs(absl::StatusCode::kDataLoss));
}

// Each header of the file says that its record reaches to the file's end, where no checksum is right.
TEST(Log, AFileFullOfFalseRecordsIsRefusedSoon) {
  FakeFileSystem files;
  v1::LogSegmentHeader header;
  header.set_format_version(1);
  header.set_term(1);
  header.set_first_position(1);
  constexpr uint32_t kRecords = 1 << 19;
  std::string bytes = SegmentStart(header);
  for (uint32_t i = 0; i < kRecords; ++i) {
    const uint32_t words[] = {0x31525754, 0, (kRecords - 1 - i) * 32, 1};
    const uint64_t positions[] = {i + 1, i + 1};
    bytes.append(reinterpret_cast<const char*>(words), sizeof(words));
    bytes.append(reinterpret_cast<const char*>(positions), sizeof(positions));
  }
  const auto write = [&] {
    TANDEM_ASSERT_OK_AND_ASSIGN(const auto file, files.Create("/log/" + SegmentName(1, 1), bytes.size()));
    TANDEM_ASSERT_OK(file->WriteAt(0, bytes));
  };
  write();
  EXPECT_THAT(ReadAll(files), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("damaged")));
  bytes[0] = 'x';
  write();
  EXPECT_THAT(ListSegments(files, kDirectory), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("damaged")));
}

// The bytes of version 1. A change of this test is a change of the format, and needs a new version.
TEST(Record, HasTheBytesOfVersionOne) {
  v1::LogSegmentHeader header;
  header.set_format_version(1);
  header.set_term(3);
  header.set_first_position(9);
  std::string bytes = SegmentStart(header);
  EXPECT_EQ(bytes.size() % 8, 0u);
  AppendRecord(RecordKind::kFlush, 9, 8, Bytes(std::string("12345")), &bytes);
  const std::string golden("TANDEMW1\x06\0\0\0\x08\x01\x10\x03\x18\x09", 18);
  EXPECT_EQ(bytes.substr(0, golden.size()), golden);
  size_t records = 0;
  ASSERT_TRUE(ParseSegmentStart(bytes, &records).has_value());
  EXPECT_EQ(records, 24u);
  EXPECT_EQ(bytes.substr(records, 4), "TWR1");
  EXPECT_EQ(bytes.substr(records + 8), std::string("\x05\0\0\0\x04\0\0\0\x09\0\0\0\0\0\0\0\x08\0\0\0\0\0\0\0"
                                                   "12345\0\0\0",
                                                   32));
  EXPECT_FALSE(ParseRecord(bytes, records + 8).has_value());
  const std::optional<Record> record = ParseRecord(bytes, records);
  ASSERT_TRUE(record.has_value());
  EXPECT_EQ(record->kind, RecordKind::kFlush);
  EXPECT_EQ(record->body, "12345");
  EXPECT_EQ(record->bytes, 40u);
}

}  // namespace
}  // namespace tandem::ps
