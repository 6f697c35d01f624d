// SPDX-License-Identifier: Apache-2.0
#include "launcher/host/pinning.h"

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/temp_dir.h"

namespace tandem::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Cpus = std::vector<int>;

// Two memory nodes of two cores of two threads; the threads of a core are numbered 4 apart, as Linux does.
class PinningTest : public ::testing::Test {
 protected:
  PinningTest() {
    Write("node/online", "0-1");
    Write("node/node0/cpulist", "0-1,4-5");
    Write("node/node1/cpulist", "2-3,6-7");
    for (int cpu = 0; cpu < 8; ++cpu) {
      Write(absl::StrCat("cpu/cpu", cpu, "/topology/core_id"), absl::StrCat(cpu % 2));
      Write(absl::StrCat("cpu/cpu", cpu, "/topology/physical_package_id"), absl::StrCat(cpu % 4 / 2));
    }
  }
  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(dir_.File(path)).parent_path());
    std::ofstream(dir_.File(path)) << text << "\n";
  }
  CpuTopology Read(const Cpus& allowed) { return ReadCpuTopology(dir_.path(), allowed); }
  testing::TempDir dir_;
  const Cpus all_ = {0, 1, 2, 3, 4, 5, 6, 7};
};

TEST_F(PinningTest, CoresHoldTheirThreadsAndLieByMemoryNode) {
  const CpuTopology topology = Read(all_);
  EXPECT_THAT(topology.cores, ElementsAre(Cpus{0, 4}, Cpus{1, 5}, Cpus{2, 6}, Cpus{3, 7}));
  EXPECT_THAT(topology.nodes, ElementsAre(Cpus{0, 1, 4, 5}, Cpus{2, 3, 6, 7}));
}

TEST_F(PinningTest, OnlyWhatTheLauncherMayUseItselfIsGivenAway) {
  const CpuTopology topology = Read({1, 5, 6});
  EXPECT_THAT(topology.cores, ElementsAre(Cpus{1, 5}, Cpus{6}));
  EXPECT_THAT(topology.nodes, ElementsAre(Cpus{1, 5}, Cpus{6}));
}

TEST_F(PinningTest, ProcessesShareTheCoresEqually) {
  const CpuTopology topology = Read(all_);
  EXPECT_THAT(ProcessorsOf(topology, Bind::kNone, 0, 2), IsEmpty());
  EXPECT_EQ(ProcessorsOf(topology, Bind::kCore, 0, 2), (Cpus{0, 1, 4, 5}));
  EXPECT_EQ(ProcessorsOf(topology, Bind::kCore, 1, 2), (Cpus{2, 3, 6, 7}));
  EXPECT_EQ(ProcessorsOf(topology, Bind::kCore, 0, 3), (Cpus{0, 4}));
  EXPECT_EQ(ProcessorsOf(topology, Bind::kCore, 2, 3), (Cpus{2, 3, 6, 7}));
  EXPECT_EQ(ProcessorsOf(topology, Bind::kCore, 5, 6), (Cpus{1, 5}));  // by turns
}

TEST_F(PinningTest, ProcessesGoToMemoryNodesInOrder) {
  const CpuTopology topology = Read(all_);
  for (const int index : {0, 1}) EXPECT_EQ(ProcessorsOf(topology, Bind::kNuma, index, 4), (Cpus{0, 1, 4, 5}));
  for (const int index : {2, 3}) EXPECT_EQ(ProcessorsOf(topology, Bind::kNuma, index, 4), (Cpus{2, 3, 6, 7}));
  EXPECT_EQ(ProcessorsOf(topology, Bind::kNuma, 0, 1), (Cpus{0, 1, 4, 5}));
}

TEST_F(PinningTest, AMachineThatTellsNothingHasCoresOfOneThread) {
  const CpuTopology topology = ReadCpuTopology(dir_.File("nothing"), {3, 5});
  EXPECT_THAT(topology.cores, ElementsAre(Cpus{3}, Cpus{5}));
  EXPECT_THAT(topology.nodes, ElementsAre(Cpus{3, 5}));
}

TEST_F(PinningTest, ListsOfProcessorsAreRead) {
  EXPECT_EQ(ParseProcessorList("0-2,8"), (Cpus{0, 1, 2, 8}));
  EXPECT_EQ(ParseProcessorList("7"), (Cpus{7}));
  for (const char* text : {"", "x", "3-1", "-1", "0-99999999"})
    EXPECT_THAT(ParseProcessorList(text), IsEmpty()) << text;
}

TEST_F(PinningTest, ThisMachineHasAProcessor) {
  const Cpus allowed = AllowedProcessors();
  ASSERT_FALSE(allowed.empty());
  const CpuTopology topology = ReadCpuTopology("/sys/devices/system", allowed);
  size_t cpus = 0;
  for (const Cpus& core : topology.cores) cpus += core.size();
  EXPECT_EQ(cpus, allowed.size());
}

}  // namespace
}  // namespace tandem::launcher
