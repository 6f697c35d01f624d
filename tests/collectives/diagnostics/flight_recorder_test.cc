// SPDX-License-Identifier: Apache-2.0
#include "collectives/diagnostics/flight_recorder.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/json.h"
#include "base/read_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::collectives {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Le;
using testing::StatusIs;
using testing::TempDir;

Operation AllReduce(uint64_t sequence, size_t count = 1024) {
  Operation o;
  o.kind = OpKind::kAllReduce;
  o.dtype = DType::kF32;
  o.sequence = sequence;
  o.in.count = count;
  o.out.count = count;
  o.timeout = absl::Seconds(60);
  return o;
}

Operation Send(uint64_t sequence, int peer, uint32_t tag) {
  Operation o;
  o.kind = OpKind::kSend;
  o.dtype = DType::kI64;
  o.sequence = sequence;
  o.root = peer;
  o.tag = tag;
  o.in.count = 10;
  return o;
}

FlightRecorder::Options Small(size_t entries) {
  FlightRecorder::Options options;
  options.entries = entries;
  return options;
}

nlohmann::json Parsed(const FlightRecorder& recorder, absl::string_view reason = "test") {
  return ParseJson(recorder.ToJson(reason));
}

std::vector<uint64_t> Sequences(const nlohmann::json& dump) {
  std::vector<uint64_t> sequences;
  for (const auto& entry : dump["entries"]) sequences.push_back(entry["sequence"]);
  return sequences;
}

TEST(FlightRecorderTest, WritesDownWhatWasDoneAndHowItEnded) {
  const absl::Time before = absl::Now();
  FlightRecorder recorder({.entries = 16, .rank = 3});
  const uint32_t group = recorder.AddGroup("default", "shm", 3, {0, 1, 2, 3});
  const uint32_t pair = recorder.AddGroup("pair", "tcp", 1, {2, 3});
  recorder.End(recorder.BeginStarted(group, AllReduce(0)), absl::OkStatus());
  const uint64_t failed = recorder.Begin(pair, AllReduce(0, 7));
  recorder.Start(failed);
  recorder.End(failed, absl::UnavailableError("rank 2 has died"));
  recorder.BeginStarted(group, AllReduce(1));
  recorder.Begin(group, Send(5, 1, 9));

  const nlohmann::json dump = Parsed(recorder, "time-out");
  const absl::Time after = absl::Now();
  EXPECT_EQ(dump["tandem_trace"], 1);
  EXPECT_EQ(dump["reason"], "time-out");
  EXPECT_EQ(dump["rank"], 3);
  EXPECT_EQ(dump["pid"], ::getpid());
  EXPECT_FALSE(dump["host"].get<std::string>().empty());
  EXPECT_FALSE(dump["versions"]["tandem"].get<std::string>().empty());
  ASSERT_EQ(dump["groups"].size(), 2u);
  EXPECT_EQ(dump["groups"][0]["name"], "default");
  EXPECT_EQ(dump["groups"][0]["collective"]["last_issued"], 1);
  EXPECT_EQ(dump["groups"][0]["collective"]["last_completed"], 0);
  EXPECT_EQ(dump["groups"][0]["point_to_point"]["last_issued"], 5);
  EXPECT_EQ(dump["groups"][1]["global_ranks"], nlohmann::json({2, 3}));
  EXPECT_EQ(dump["groups"][1]["collective"]["last_completed"], -1);

  ASSERT_EQ(dump["entries"].size(), 4u);
  const nlohmann::json& done = dump["entries"][0];
  EXPECT_EQ(done["group_name"], "default");
  EXPECT_EQ(done["op"], "all_reduce");
  EXPECT_EQ(done["dtype"], "f32");
  EXPECT_EQ(done["reduce"], "sum");
  EXPECT_EQ(done["count"], 1024);
  EXPECT_EQ(done["bytes_in"], 4096);
  EXPECT_EQ(done["bytes_out"], 4096);
  EXPECT_EQ(done["timeout_ms"], 60000);
  EXPECT_EQ(done["state"], "completed");
  EXPECT_EQ(done["description"], "all_reduce #0 (sum of f32 x 1024)");
  EXPECT_GE(done["duration_us"].get<double>(), 0);
  // Wall times, to the accuracy of the calibration.
  for (const char* when : {"issued_unix_us", "started_unix_us", "ended_unix_us"}) {
    EXPECT_THAT(absl::FromUnixMicros(done[when].get<int64_t>()),
                AllOf(Ge(before - absl::Milliseconds(5)), Le(after + absl::Milliseconds(5))))
        << when;
  }
  EXPECT_LE(done["started_unix_us"], done["ended_unix_us"]);
  EXPECT_EQ(dump["entries"][1]["state"], "failed");
  EXPECT_THAT(dump["entries"][1]["error"].get<std::string>(), HasSubstr("rank 2 has died"));
  EXPECT_EQ(dump["entries"][2]["state"], "started");
  EXPECT_FALSE(dump["entries"][2].contains("ended_unix_us"));
  const nlohmann::json& queued = dump["entries"][3];
  EXPECT_EQ(queued["state"], "queued");
  EXPECT_EQ(queued["peer"], 1);
  EXPECT_EQ(queued["tag"], 9);
  EXPECT_EQ(queued["point_to_point"], true);
  EXPECT_FALSE(queued.contains("started_unix_us"));
  EXPECT_FALSE(queued.contains("timeout_ms"));
}

TEST(FlightRecorderTest, KeepsTheLastOperations) {
  FlightRecorder recorder(Small(4));
  const uint32_t group = recorder.AddGroup("g", "shm", 0, {0});
  for (uint64_t i = 0; i < 10; ++i) recorder.End(recorder.Begin(group, AllReduce(i)), absl::OkStatus());
  EXPECT_THAT(Sequences(Parsed(recorder)), ElementsAre(6, 7, 8, 9));
}

TEST(FlightRecorderTest, KeepsWhatIsInFlightHoweverManyOperationsPass) {
  FlightRecorder recorder(Small(4));
  const uint32_t group = recorder.AddGroup("g", "shm", 0, {0});
  const uint64_t stuck = recorder.BeginStarted(group, Send(0, 1, 0));
  for (uint64_t i = 0; i < 100; ++i) recorder.End(recorder.Begin(group, AllReduce(i)), absl::OkStatus());
  EXPECT_THAT(Sequences(Parsed(recorder)), ElementsAre(0, 97, 98, 99));
  recorder.End(stuck, absl::OkStatus());
  for (uint64_t i = 100; i < 110; ++i) recorder.End(recorder.Begin(group, AllReduce(i)), absl::OkStatus());
  EXPECT_THAT(Sequences(Parsed(recorder)), ElementsAre(106, 107, 108, 109));
}

TEST(FlightRecorderTest, SaysHowManyWereNotRecordedWhenAllPlacesAreInFlight) {
  FlightRecorder recorder(Small(2));
  const uint32_t group = recorder.AddGroup("g", "shm", 0, {0});
  recorder.Begin(group, AllReduce(0));
  recorder.Begin(group, AllReduce(1));
  const uint64_t lost = recorder.Begin(group, AllReduce(2));
  recorder.Start(lost);
  recorder.End(lost, absl::InternalError("unseen"));
  const nlohmann::json dump = Parsed(recorder);
  EXPECT_THAT(Sequences(dump), ElementsAre(0, 1));
  EXPECT_EQ(dump["not_recorded"], 1);
}

TEST(FlightRecorderTest, WithoutPlacesNothingIsRecorded) {
  FlightRecorder recorder(Small(0));
  const uint64_t id = recorder.Begin(recorder.AddGroup("g", "shm", 0, {0}), AllReduce(0));
  recorder.Start(id);
  recorder.End(id, absl::OkStatus());
  EXPECT_THAT(Parsed(recorder)["entries"], IsEmpty());
  EXPECT_THAT(recorder.Running(), IsEmpty());
}

TEST(FlightRecorderTest, RunningTellsWhatIsNotOverOldestFirst) {
  FlightRecorder recorder(Small(16));
  const uint32_t group = recorder.AddGroup("trainers", "shm", 0, {0, 1});
  recorder.End(recorder.BeginStarted(group, AllReduce(0)), absl::OkStatus());
  const uint64_t started = recorder.BeginStarted(group, AllReduce(1));
  const uint64_t queued = recorder.Begin(group, Send(0, 1, 7));
  std::vector<FlightRecorder::InFlight> running = recorder.Running();
  ASSERT_EQ(running.size(), 2u);
  EXPECT_EQ(running[0].id, started);
  EXPECT_EQ(running[0].group, group);
  EXPECT_EQ(running[0].group_name, "trainers");
  EXPECT_EQ(running[0].description, "all_reduce #1 (sum of f32 x 1024)");
  EXPECT_EQ(running[0].timeout, absl::Seconds(60));
  EXPECT_TRUE(running[0].started);
  EXPECT_GT(running[0].running, absl::ZeroDuration());
  EXPECT_EQ(running[1].description, Describe(Send(0, 1, 7)));
  EXPECT_FALSE(running[1].started);
  EXPECT_EQ(running[1].running, absl::ZeroDuration());
  EXPECT_GT(running[1].queued, absl::ZeroDuration());
  EXPECT_EQ(running[1].timeout, absl::InfiniteDuration());
  recorder.Start(queued);
  recorder.End(started, absl::OkStatus());
  recorder.End(queued, absl::CancelledError(""));
  recorder.End(queued, absl::OkStatus());  // the first end counts
  EXPECT_THAT(recorder.Running(), IsEmpty());
  EXPECT_EQ(Parsed(recorder)["entries"][2]["state"], "failed");
}

TEST(FlightRecorderTest, CountsElementsOfPartsAndTheirHash) {
  FlightRecorder recorder(Small(16));
  const uint32_t group = recorder.AddGroup("g", "shm", 0, {0, 1});
  const std::vector<Part> outs = {{nullptr, 3}, {nullptr, 5}};
  Operation o;
  o.kind = OpKind::kAllGather;
  o.dtype = DType::kF64;
  o.in.count = 3;
  o.outs = outs;
  o.even = false;
  recorder.Begin(group, o);
  const nlohmann::json entry = Parsed(recorder)["entries"][0];
  EXPECT_EQ(entry["bytes_in"], 24);
  EXPECT_EQ(entry["bytes_out"], 64);
  EXPECT_EQ(entry["count"], 8);
  EXPECT_EQ(entry["parts_hash"], FingerprintOf(o).parts_hash);
  EXPECT_EQ(entry["even"], false);
}

TEST(FlightRecorderTest, ANumberIsGivenAgainOnlyWhenNothingSpeaksOfItAnyMore) {
  FlightRecorder recorder(Small(2));
  const uint32_t first = recorder.AddGroup("first", "shm", 0, {0});
  recorder.End(recorder.Begin(first, AllReduce(8)), absl::OkStatus());
  recorder.RemoveGroup(first);
  const uint32_t second = recorder.AddGroup("second", "shm", 0, {0});
  EXPECT_NE(second, first);
  nlohmann::json dump = Parsed(recorder);
  EXPECT_EQ(dump["entries"][0]["group_name"], "first");
  EXPECT_EQ(dump["groups"][0]["closed"], true);
  for (uint64_t i = 0; i < 2; ++i) recorder.End(recorder.Begin(second, AllReduce(i)), absl::OkStatus());
  EXPECT_EQ(recorder.AddGroup("third", "shm", 0, {0}), first);
  dump = Parsed(recorder);
  EXPECT_EQ(dump["groups"][0]["name"], "third");
  EXPECT_EQ(dump["groups"][0]["collective"]["last_issued"], -1);
}

TEST(FlightRecorderTest, DumpsAreWrittenWholeAndReplaced) {
  TempDir dir;
  const std::string directory = dir.File("made/for/it");
  FlightRecorder recorder({.entries = 4, .directory = directory, .rank = 2});
  TANDEM_ASSERT_OK(recorder.Dump("first"));
  TANDEM_ASSERT_OK(recorder.Dump("second \xff"));
  std::vector<std::string> names;
  for (const auto& file : std::filesystem::directory_iterator(directory)) names.push_back(file.path());
  const std::string path = absl::StrCat(directory, "/tandem-trace-rank2-pid", ::getpid(), ".json");
  ASSERT_THAT(names, ElementsAre(path));
  EXPECT_EQ(ParseJson(ReadFile(path).value())["reason"], "second \xef\xbf\xbd");
}

TEST(FlightRecorderTest, WithoutADirectoryNoDumpIsWritten) {
  TANDEM_EXPECT_OK(FlightRecorder(Small(4)).Dump("nothing"));
}

TEST(FlightRecorderTest, AFailedWriteNamesThePathAndIsLoggedOnce) {
  TempDir dir;
  std::ofstream(dir.File("file")) << "no directory";
  FlightRecorder recorder({.entries = 4, .directory = dir.File("file")});
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(recorder.Dump("x"), StatusIs(absl::StatusCode::kUnavailable, HasSubstr(dir.File("file"))));
  }
  const std::string log = ::testing::internal::GetCapturedStderr();
  const size_t line = log.find("no trace");
  ASSERT_NE(line, std::string::npos) << log;
  EXPECT_EQ(log.find("no trace", line + 1), std::string::npos) << log;
}

TEST(FlightRecorderTest, TheEnvironmentSetsSizeAndDirectory) {
  ::setenv("TANDEM_TRACE_ENTRIES", "77", 1);
  ::setenv("TANDEM_TRACE_DIR", "/some/where", 1);
  FlightRecorder::Options options = FlightRecorder::OptionsFromEnv(5);
  EXPECT_EQ(options.entries, 77u);
  EXPECT_EQ(options.directory, "/some/where");
  EXPECT_EQ(options.rank, 5);
  ::setenv("TANDEM_TRACE_ENTRIES", "many", 1);
  EXPECT_EQ(FlightRecorder::OptionsFromEnv(5).entries, FlightRecorder::Options().entries);
  ::unsetenv("TANDEM_TRACE_ENTRIES");
  ::unsetenv("TANDEM_TRACE_DIR");
}

// Used by the test below.
void ExpectWhole(const nlohmann::json& entry) {
  const uint64_t i = entry["sequence"];
  ASSERT_EQ(entry["count"], 10 * i);
  ASSERT_EQ(entry["bytes_in"], 40 * i);
  ASSERT_EQ(entry["bytes_out"], 40 * i);
  ASSERT_EQ(entry["tag"], static_cast<uint32_t>(3 * i));
  ASSERT_EQ(entry["timeout_ms"], i + 1);
  if (entry["state"] == "completed" || entry["state"] == "failed") {
    ASSERT_EQ(entry["state"] == "failed", i % 10 == 9);
  }
  if (entry.contains("error")) {
    ASSERT_EQ(entry["error"], absl::StrCat("UNAVAILABLE: error ", i));
  }
}

// Writers and readers run concurrently. Invariant: the fields that a reader sees of an operation belong
// together; here, all its numbers follow from its sequence number.
TEST(FlightRecorderTest, ReadersSeeOnlyWholeOperationsWhileOthersWrite) {
  constexpr int kWriters = 4;
  constexpr int kEnough = 2000;  // operations seen
  FlightRecorder recorder(Small(32));
  std::vector<uint32_t> groups;
  for (int w = 0; w < kWriters; ++w) groups.push_back(recorder.AddGroup(absl::StrCat(w), "shm", 0, {0}));
  std::atomic<bool> enough{false};
  std::vector<uint64_t> done(kWriters);
  std::vector<std::thread> threads;
  for (int w = 0; w < kWriters; ++w) {
    threads.emplace_back([&, w] {
      for (uint64_t i = 0; !enough || i == 0; ++i) {
        Operation o = AllReduce(i, 10 * i);
        o.root = w;
        o.tag = static_cast<uint32_t>(3 * i);
        o.timeout = absl::Milliseconds(i + 1);
        const uint64_t id = recorder.Begin(groups[w], o);
        recorder.Start(id);
        recorder.End(id, i % 10 == 9 ? absl::UnavailableError(absl::StrCat("error ", i)) : absl::OkStatus());
        done[w] = i + 1;
      }
    });
  }
  int seen = 0;
  while (seen < kEnough && !HasFatalFailure()) {
    const nlohmann::json dump = Parsed(recorder);
    for (const nlohmann::json& entry : dump["entries"]) {
      ExpectWhole(entry);
      ++seen;
    }
    for (const FlightRecorder::InFlight& one : recorder.Running()) {
      EXPECT_EQ(one.description.find("all_reduce #"), 0u) << one.description;
      EXPECT_NE(one.timeout, absl::ZeroDuration());
    }
  }
  enough = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(recorder.Running(), IsEmpty());
  const nlohmann::json dump = Parsed(recorder);
  for (int w = 0; w < kWriters; ++w) {
    EXPECT_EQ(dump["groups"][w]["collective"]["last_issued"], done[w] - 1);
  }
}

}  // namespace
}  // namespace tandem::collectives
