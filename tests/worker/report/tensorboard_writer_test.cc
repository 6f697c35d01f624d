// SPDX-License-Identifier: Apache-2.0
#include "worker/report/tensorboard_writer.h"

#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "tests/worker/report/event_file_reader.h"
#include "worker/report/event_record.h"

namespace tandem::worker {
namespace {

using tandem::testing::EventFile;
using tandem::testing::ReadEventFile;
using tandem::testing::ReadRun;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

TEST(EventRecord, MasksItsCrcAsOtherReadersDo) {
  EXPECT_EQ(MaskedCrc32c("foo"), tandem::testing::PlainMaskedCrc32c("foo"));
}

TEST(TensorboardWriter, AnotherProgramReadsWhatWasWritten) {
  tandem::testing::TempDir dir;
  SimulatedClock clock(absl::FromUnixSeconds(1'700'000'000));
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto writer, TensorboardWriter::Open(dir.File("worker-0"), &clock));
  clock.Advance(absl::Milliseconds(1500));
  TANDEM_ASSERT_OK(writer->Write(3, {{"train/loss", 0.625}, {"train/samples_per_s", 1e6}}));
  TANDEM_ASSERT_OK(writer->Write(int64_t{1} << 40, {{"train/loss", -0.5}}));
  const EventFile file = ReadRun(dir.File("worker-0"));
  EXPECT_EQ(file.wrong, "");
  EXPECT_EQ(file.version, "brain.Event:2");
  EXPECT_THAT(file.wall_times, ElementsAre(1'700'000'000, 1'700'000'001.5, 1'700'000'001.5));
  EXPECT_THAT(file.scalars,
              ElementsAre(Pair("train/loss", ElementsAre(Pair(3, 0.625f), Pair(int64_t{1} << 40, -0.5f))),
                          Pair("train/samples_per_s", ElementsAre(Pair(3, 1e6f)))));
}

TEST(TensorboardWriter, ARunThatGoesOnGetsAFileOfItsOwn) {
  tandem::testing::TempDir dir;
  SimulatedClock clock;
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto first, TensorboardWriter::Open(dir.path(), &clock));
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto second, TensorboardWriter::Open(dir.path(), &clock));
  EXPECT_NE(first->path(), second->path());
  TANDEM_ASSERT_OK(first->Write(1, {{"a", 1.0}}));
  TANDEM_ASSERT_OK(second->Write(2, {{"a", 2.0}}));
  EXPECT_EQ(ReadEventFile(first->path()).scalars.at("a").size(), 1u);
  EXPECT_EQ(ReadEventFile(second->path()).scalars.at("a").size(), 1u);
}

TEST(TensorboardWriter, ThreadsDoNotMixTheirRecords) {
  tandem::testing::TempDir dir;
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto writer, TensorboardWriter::Open(dir.path()));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) (void)writer->Write(i, {{absl::StrCat("thread/", t), i}});
    });
  }
  for (std::thread& thread : threads) thread.join();
  const EventFile file = ReadRun(dir.path());
  EXPECT_EQ(file.wrong, "");
  EXPECT_EQ(file.scalars.size(), 4u);
  for (const auto& [tag, values] : file.scalars) EXPECT_EQ(values.size(), 200u) << tag;
}

TEST(TensorboardWriter, ADirectoryThatCannotBeMadeIsNamed) {
  tandem::testing::TempDir dir;
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto writer, TensorboardWriter::Open(dir.path()));
  const std::string below = writer->path() + "/below";  // `path()` is a file
  EXPECT_THAT(TensorboardWriter::Open(below).status().message(), HasSubstr(below));
}

}  // namespace
}  // namespace tandem::worker
