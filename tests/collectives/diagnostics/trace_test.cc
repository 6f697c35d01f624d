// SPDX-License-Identifier: Apache-2.0
#include "collectives/diagnostics/trace_analysis.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <vector>

#include "base/json.h"
#include "collectives/diagnostics/flight_recorder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::collectives {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::IsOk;
using testing::StatusIs;
using testing::TempDir;
using Kind = TraceFinding::Kind;

// The recorders of all ranks of a job, in one process.
class TraceTest : public ::testing::Test {
 protected:
  void Make(int ranks) {
    std::vector<int> all;
    for (int rank = 0; rank < ranks; ++rank) all.push_back(rank);
    for (int rank = 0; rank < ranks; ++rank) {
      recorders_.push_back(std::make_unique<FlightRecorder>(
          FlightRecorder::Options{.entries = 8, .directory = dir_.path(), .rank = rank}));
      groups_.push_back(recorders_[rank]->AddGroup("default", "mpi", rank, all));
    }
  }
  static Operation Op(OpKind kind, uint64_t sequence, size_t count = 1024) {
    Operation o;
    o.kind = kind;
    o.dtype = DType::kF32;
    o.sequence = sequence;
    o.in.count = o.out.count = count;
    return o;
  }
  void Complete(int rank, uint64_t from, uint64_t to) {
    for (uint64_t i = from; i < to; ++i) {
      recorders_[rank]->End(recorders_[rank]->BeginStarted(groups_[rank], Op(OpKind::kAllReduce, i)),
                            absl::OkStatus());
    }
  }
  void Hang(int rank, const Operation& operation) {
    recorders_[rank]->BeginStarted(groups_[rank], operation);
  }
  // Dumps all ranks but `silent`, and analyses the dumps.
  TraceAnalysis Run(const std::vector<int>& silent = {}) {
    for (size_t rank = 0; rank < recorders_.size(); ++rank) {
      if (std::find(silent.begin(), silent.end(), rank) == silent.end()) {
        TANDEM_EXPECT_OK(recorders_[rank]->Dump("test"));
      }
    }
    absl::StatusOr<TraceDirectory> read = ReadTraces(dir_.path());
    TANDEM_EXPECT_OK(read);
    directory_ = *std::move(read);
    return Analyze(directory_);
  }

  TempDir dir_;
  std::vector<std::unique_ptr<FlightRecorder>> recorders_;
  std::vector<uint32_t> groups_;  // by rank
  TraceDirectory directory_;
};

TEST_F(TraceTest, NothingIsFoundWhereNobodyHangs) {
  Make(2);
  for (int rank : {0, 1}) Complete(rank, 0, 5);
  const TraceAnalysis analysis = Run();
  EXPECT_THAT(analysis.findings, IsEmpty());
  EXPECT_EQ(analysis.rows.size(), 2u);
  EXPECT_THAT(TraceText("DIR", directory_, analysis),
              AllOf(HasSubstr("Dumps of 2 ranks in DIR"), HasSubstr("No rank is behind"), HasSubstr("#4")));
}

TEST_F(TraceTest, TheRankThatDidNotCallIsBehind) {
  Make(3);
  for (int rank : {0, 1, 2}) Complete(rank, 0, 4);
  for (int rank : {0, 2}) Hang(rank, Op(OpKind::kAllReduce, 4));
  const TraceAnalysis analysis = Run();
  ASSERT_EQ(analysis.findings.size(), 1u);
  const TraceFinding& finding = analysis.findings[0];
  EXPECT_EQ(finding.kind, Kind::kBehind);
  EXPECT_THAT(finding.ranks, ElementsAre(1));
  EXPECT_THAT(finding.waiting, ElementsAre(0, 2));
  EXPECT_EQ(finding.sequence, 4);
  EXPECT_THAT(finding.text,
              AllOf(HasSubstr("Rank 1 is behind: ranks 0 and 2 wait in all_reduce #4 (sum of f32 x 1024) of "
                              "group 'default'"),
                    HasSubstr("which rank 1 has not called"),
                    HasSubstr("The last that rank 1 completed there is all_reduce #3"),
                    HasSubstr("in no other operation")));
}

TEST_F(TraceTest, FailedOperationsCountAsWaitedIn) {
  Make(2);
  for (int rank : {0, 1}) Complete(rank, 0, 4);
  recorders_[0]->End(recorders_[0]->BeginStarted(groups_[0], Op(OpKind::kBarrier, 4)),
                     absl::DeadlineExceededError("rank 1 did not come"));
  const TraceAnalysis analysis = Run();
  ASSERT_EQ(analysis.findings.size(), 1u);
  EXPECT_THAT(analysis.findings[0].text,
              AllOf(HasSubstr("Rank 1 is behind: rank 0 waited in barrier #4"), HasSubstr("and failed")));
  EXPECT_THAT(TraceText("DIR", directory_, analysis), HasSubstr("rank 1 did not come"));
}

TEST_F(TraceTest, ARankWhoseRingHasForgottenTheGroupIsNotTakenForSilent) {
  Make(2);
  for (int rank : {0, 1}) Complete(rank, 0, 3);
  Hang(0, Op(OpKind::kAllReduce, 3));
  const uint32_t other = recorders_[1]->AddGroup("alone", "solo", 0, {1});
  for (uint64_t i = 0; i < 20; ++i) {
    recorders_[1]->End(recorders_[1]->BeginStarted(other, Op(OpKind::kBarrier, i)), absl::OkStatus());
  }
  const TraceAnalysis analysis = Run();
  ASSERT_EQ(analysis.findings.size(), 1u);
  EXPECT_EQ(analysis.findings[0].kind, Kind::kBehind);
  EXPECT_EQ(analysis.rows.back().last_completed, 2);
}

TEST_F(TraceTest, RanksThatCallSomethingElseDisagree) {
  Make(3);
  for (int rank : {0, 1, 2}) Complete(rank, 0, 2);
  Hang(0, Op(OpKind::kBroadcast, 2));
  Hang(1, Op(OpKind::kAllReduce, 2));
  Hang(2, Op(OpKind::kAllReduce, 2));
  const TraceAnalysis analysis = Run();
  ASSERT_EQ(analysis.findings.size(), 1u);
  EXPECT_EQ(analysis.findings[0].kind, Kind::kDisagree);
  EXPECT_THAT(analysis.findings[0].ranks, ElementsAre(0));
  EXPECT_THAT(analysis.findings[0].text,
              AllOf(HasSubstr("disagree about operation #2: ranks 1 and 2 call all_reduce #2"),
                    HasSubstr("rank 0 calls broadcast #2")));
}

TEST_F(TraceTest, DifferentSizesAreADisagreementAlsoAfterTheyFailed) {
  Make(2);
  for (int rank : {0, 1}) {
    recorders_[rank]->End(
        recorders_[rank]->BeginStarted(groups_[rank], Op(OpKind::kAllReduce, 0, rank == 0 ? 5 : 6)),
        absl::InvalidArgumentError("ranks disagree"));
  }
  const TraceAnalysis analysis = Run();
  ASSERT_EQ(analysis.findings.size(), 1u);
  EXPECT_THAT(analysis.findings[0].text, AllOf(HasSubstr("f32 x 5"), HasSubstr("f32 x 6")));
}

TEST_F(TraceTest, ARankWithoutDumpIsNamed) {
  Make(3);
  for (int rank : {0, 1}) Hang(rank, Op(OpKind::kAllReduce, 0));
  const TraceAnalysis analysis = Run({2});
  ASSERT_EQ(analysis.findings.size(), 1u);
  EXPECT_EQ(analysis.findings[0].kind, Kind::kDead);
  EXPECT_THAT(analysis.findings[0].text,
              HasSubstr("Rank 2 has left no dump (dead?): ranks 0 and 1 wait in all_reduce #0"));
  EXPECT_THAT(TraceText("DIR", directory_, analysis), HasSubstr("Dumps of 2 ranks in DIR; none of rank 2"));
}

TEST_F(TraceTest, ARankThatHasNotFinishedWhatOthersHaveIsBehind) {
  Make(2);
  Complete(0, 0, 1);
  Hang(1, Op(OpKind::kAllReduce, 0));
  const TraceAnalysis analysis = Run();
  ASSERT_EQ(analysis.findings.size(), 1u);
  EXPECT_EQ(analysis.findings[0].kind, Kind::kSlow);
  EXPECT_THAT(analysis.findings[0].text,
              HasSubstr("Rank 1 is behind: rank 0 has finished all_reduce #0 (sum of f32 x 1024)"));
}

TEST_F(TraceTest, WhereAllAreInsideNobodyIsBlamed) {
  Make(2);
  for (int rank : {0, 1}) Hang(rank, Op(OpKind::kAllReduce, 0));
  const TraceAnalysis analysis = Run();
  ASSERT_EQ(analysis.findings.size(), 1u);
  EXPECT_EQ(analysis.findings[0].kind, Kind::kStuck);
}

TEST_F(TraceTest, AQueueThatStandsStillIsTold) {
  Make(2);
  Hang(0, Op(OpKind::kAllReduce, 0));
  recorders_[1]->Begin(groups_[1], Op(OpKind::kAllReduce, 0));
  const TraceAnalysis analysis = Run();
  ASSERT_EQ(analysis.findings.size(), 1u);
  EXPECT_THAT(analysis.findings[0].text, HasSubstr("Rank 1 has queued all_reduce #0"));
}

TEST_F(TraceTest, RanksThatWaitForEachOtherInTwoGroupsAreACircle) {
  Make(2);
  std::vector<uint32_t> second;
  for (int rank : {0, 1}) second.push_back(recorders_[rank]->AddGroup("second", "mpi", rank, {0, 1}));
  Hang(0, Op(OpKind::kAllReduce, 0));
  recorders_[1]->BeginStarted(second[1], Op(OpKind::kBarrier, 0));
  const TraceAnalysis analysis = Run();
  ASSERT_EQ(analysis.findings.size(), 3u);
  EXPECT_THAT(analysis.findings[0].text, HasSubstr("Now it is in barrier #0 of group 'second'"));
  EXPECT_EQ(analysis.findings[2].kind, Kind::kCircle);
  EXPECT_THAT(analysis.findings[2].text,
              AllOf(HasSubstr("rank 0 is in all_reduce #0"), HasSubstr("waits for rank 1"),
                    HasSubstr("rank 1 is in barrier #0 of group 'second' and waits for rank 0")));
}

TEST_F(TraceTest, AMessageThatNobodySentIsTold) {
  Make(2);
  Operation recv = Op(OpKind::kRecv, 0, 10);
  recv.root = 1;
  recv.tag = 7;
  Hang(0, recv);
  const TraceAnalysis analysis = Run();
  ASSERT_EQ(analysis.findings.size(), 1u);
  EXPECT_EQ(analysis.findings[0].kind, Kind::kMessage);
  EXPECT_THAT(analysis.findings[0].text, AllOf(HasSubstr("recv #0 (f32 x 10 from rank 1, tag 7)"),
                                               HasSubstr("rank 1 has not called the matching send")));
}

TEST_F(TraceTest, RanksAreGlobalInSubgroups) {
  Make(4);
  const uint32_t pair = recorders_[1]->AddGroup("pair", "mpi", 0, {1, 3});
  recorders_[3]->AddGroup("pair", "mpi", 1, {1, 3});
  recorders_[1]->BeginStarted(pair, Op(OpKind::kAllReduce, 0));
  const TraceAnalysis analysis = Run();
  ASSERT_EQ(analysis.findings.size(), 1u);
  EXPECT_THAT(analysis.findings[0].ranks, ElementsAre(3));
  EXPECT_THAT(analysis.findings[0].waiting, ElementsAre(1));
}

TEST_F(TraceTest, FilesThatAreNoWholeTracesAreNamed) {
  Make(2);
  Hang(0, Op(OpKind::kAllReduce, 0));
  TANDEM_ASSERT_OK(recorders_[0]->Dump("x"));
  const std::string whole = recorders_[1]->ToJson("x");
  const auto write = [&](const std::string& name, const std::string& text) {
    std::ofstream(dir_.File(name)) << text;
  };
  write("a-torn.json", whole.substr(0, whole.size() / 2));
  write("b-foreign.json", "{\"x\": 1}");
  write("c-array.json", "[1, 2]");
  write("d-empty.json", "");
  write("e-wrong.json", "{\"tandem_trace\": 1, \"rank\": \"zero\"}");
  write("f-newer.json", "{\"tandem_trace\": 2}");
  write("g-half.json.tmp", whole);
  write("h.log", "hello");
  std::filesystem::create_directory(dir_.File("i-directory.json"));
  write("j-older.json", nlohmann::json{{"tandem_trace", 1},
                                       {"rank", 0},
                                       {"dumped_unix_us", 1},
                                       {"groups", nlohmann::json::array()},
                                       {"entries", nlohmann::json::array()}}
                            .dump());
  const TraceAnalysis analysis = Run({1});
  std::vector<std::string> files;
  for (const auto& one : directory_.not_read) files.push_back(one.file);
  std::sort(files.begin(), files.end());
  EXPECT_THAT(files, ElementsAre("a-torn.json", "b-foreign.json", "c-array.json", "d-empty.json",
                                 "e-wrong.json", "f-newer.json", "g-half.json.tmp", "h.log", "j-older.json"));
  ASSERT_EQ(directory_.traces.size(), 1u);
  EXPECT_EQ(analysis.findings[0].kind, Kind::kDead);
  EXPECT_THAT(TraceText("DIR", directory_, analysis), HasSubstr("not read: a-torn.json: is not whole"));
}

// Any truncated or changed file is an error or a trace, and never crashes.
TEST_F(TraceTest, DamageAnywhereIsSurvived) {
  Make(1);
  Complete(0, 0, 2);
  const std::string whole = recorders_[0]->ToJson("x");
  TANDEM_ASSERT_OK(ParseTrace(whole));
  for (size_t size = 0; size + 2 < whole.size(); ++size) {
    EXPECT_THAT(ParseTrace(whole.substr(0, size)), StatusIs(absl::StatusCode::kInvalidArgument)) << size;
  }
  for (size_t i = 0; i < whole.size(); ++i) {
    std::string damaged = whole;
    damaged[i] = damaged[i] == '-' ? '9' : '-';
    TraceDirectory directory;
    if (absl::StatusOr<Trace> trace = ParseTrace(damaged); trace.ok()) {
      directory.traces.push_back(*trace);
      TraceJson("x", directory, Analyze(directory));
    }
  }
}

TEST_F(TraceTest, DirectoriesWithoutTracesAreNamed) {
  EXPECT_THAT(ReadTraces(dir_.path()),
              StatusIs(absl::StatusCode::kNotFound, AllOf(HasSubstr(dir_.path()), HasSubstr("no trace"))));
  EXPECT_THAT(ReadTraces(dir_.File("nowhere")),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no directory")));
}

TEST_F(TraceTest, JsonHoldsTheSame) {
  Make(2);
  Hang(0, Op(OpKind::kAllReduce, 0));
  const TraceAnalysis analysis = Run();
  const nlohmann::json json = ParseJson(TraceJson("DIR", directory_, analysis));
  EXPECT_EQ(json["findings"][0]["kind"], "behind");
  EXPECT_EQ(json["findings"][0]["ranks"], nlohmann::json({1}));
  EXPECT_EQ(json["findings"][0]["operation"], "all_reduce #0 (sum of f32 x 1024)");
  EXPECT_EQ(json["ranks"].size(), 2u);
  EXPECT_EQ(json["dumps"].size(), 2u);
  EXPECT_EQ(json["missing"].size(), 0u);
}

}  // namespace
}  // namespace tandem::collectives
