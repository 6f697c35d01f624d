// SPDX-License-Identifier: Apache-2.0
// Tests `tandem doctor` as a program.

#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "collectives/diagnostics/flight_recorder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/processes/tandem_process.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::cli {
namespace {

using ::testing::AllOf;
using testing::Finished;
using ::testing::HasSubstr;
using testing::RunTandem;
using testing::TempDir;

TEST(DoctorTest, LooksAtThisMachine) {
  const Finished finished = RunTandem({"doctor"});
  EXPECT_EQ(finished.exit_code, finished.out.find("\n  FAIL") == std::string::npos ? 0 : 1) << finished.out;
  for (const char* part : {"network", "interface lo", "memory", "memfd", "/dev/shm", "limits", "open files",
                           "processor", "SIMD", "MPI", "GPU", "NCCL", "versions", "gRPC", "Gloo"}) {
    EXPECT_THAT(finished.out, HasSubstr(part));
  }
}

TEST(DoctorTest, PrintsJson) {
  const Finished finished = RunTandem({"doctor", "--json"});
  const nlohmann::json json = ParseJson(finished.out);
  ASSERT_TRUE(json.is_object()) << finished.out;
  EXPECT_EQ(json["ok"], finished.exit_code == 0);
  EXPECT_GT(json["checks"].size(), 15u);
}

TEST(DoctorTest, AFailureIsExitCodeOne) {
  const Finished finished = RunTandem({"doctor"}, {{"MASTER_PORT", "99999"}});
  EXPECT_EQ(finished.exit_code, 1);
  EXPECT_THAT(finished.out, AllOf(HasSubstr("FAIL  MASTER_PORT"), HasSubstr("'99999' is no port")));
}

TEST(DoctorTest, TraceNamesTheRankThatIsBehind) {
  TempDir dir;
  for (int rank = 0; rank < 3; ++rank) {
    collectives::FlightRecorder recorder({.entries = 16, .directory = dir.path(), .rank = rank});
    const uint32_t group = recorder.AddGroup("default", "shm", rank, {0, 1, 2});
    collectives::Operation o;
    o.kind = collectives::OpKind::kAllReduce;
    o.dtype = DType::kF32;
    o.in.count = o.out.count = 1024;
    for (; o.sequence < 4; ++o.sequence) recorder.End(recorder.BeginStarted(group, o), absl::OkStatus());
    if (rank != 1) recorder.BeginStarted(group, o);
    TANDEM_ASSERT_OK(recorder.Dump("test"));
  }
  Finished finished = RunTandem({"doctor", "trace", dir.path()});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_THAT(finished.out,
              HasSubstr("Rank 1 is behind: ranks 0 and 2 wait in all_reduce #4 (sum of f32 x 1024)"));
  finished = RunTandem({"doctor", "trace", dir.path(), "--json"});
  const nlohmann::json json = ParseJson(finished.out);
  ASSERT_TRUE(json.is_object()) << finished.out;
  EXPECT_EQ(json["findings"][0]["ranks"], nlohmann::json({1}));
  EXPECT_EQ(json["findings"][0]["sequence"], 4);
}

TEST(DoctorTest, ADirectoryWithoutDumpsIsNamed) {
  TempDir dir;
  Finished finished = RunTandem({"doctor", "trace", dir.path()});
  EXPECT_EQ(finished.exit_code, 1);
  EXPECT_THAT(finished.err,
              AllOf(HasSubstr("tandem doctor trace"), HasSubstr(dir.path()), HasSubstr("no trace")));
  EXPECT_EQ(RunTandem({"doctor", "trace"}).exit_code, 2);
  EXPECT_EQ(RunTandem({"doctor", "nurse"}).exit_code, 2);
}

}  // namespace
}  // namespace tandem::cli
