// SPDX-License-Identifier: Apache-2.0
// Tests `tandem run` under the mpirun of Open MPI and of MPICH with two nodes. Both are this machine, because
// the program with which mpirun reaches a node starts the command here.

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/processes/tandem_process.h"
#include "tests/testing/temp_dir.h"

namespace tandem::launcher {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::Lines;
using testing::ReadFile;
using testing::TandemProcess;

struct Mpi {
  const char* name;
  const char* path;        // of its mpirun
  const char* package;     // Debian's
  const char* one_a_node;  // one process on each of two nodes, reached through "{rsh}"
  const char* two_on_one;  // two processes here
};

constexpr Mpi kOpenMpi = {"OpenMpi", "/usr/bin/mpirun.openmpi", "openmpi-bin",
                          "--allow-run-as-root --host node-a,node-b --map-by ppr:1:node -mca plm_rsh_agent ",
                          "--allow-run-as-root --oversubscribe -n 2"};
constexpr Mpi kMpich = {"Mpich", "/usr/bin/mpiexec.mpich", "mpich",
                        "-hosts node-a,node-b -ppn 1 -n 2 -launcher rsh -launcher-exec ", "-n 2"};

class MpirunTest : public ::testing::TestWithParam<Mpi> {
 protected:
  void SetUp() override {
    if (::access(GetParam().path, X_OK) != 0) {
      GTEST_SKIP() << "there is no " << GetParam().path << ": apt-get install " << GetParam().package;
    }
    // rsh [OPTIONS] HOST COMMAND... Each node has its own /tmp, like a real one: Open MPI's daemons fail if
    // two of them create the same directory at the same time.
    std::ofstream(rsh_) << "#!/bin/sh\nwhile [ \"${1#-}\" != \"$1\" ]; do shift; done\nexport TMPDIR="
                        << dir_.path() << "/$1\nmkdir -p $TMPDIR\nshift\nexec /bin/sh -c \"$*\"\n";
    ASSERT_EQ(::chmod(rsh_.c_str(), 0755), 0);
    store_ = std::make_unique<TandemProcess>(std::vector<std::string>{"store", "--listen", "127.0.0.1:0"});
    ASSERT_TRUE(store_->WaitForOutput("\n"));
    endpoint_ = Lines(store_->out()).at(0);
  }
  // Runs `tandem run FLAGS` under mpirun. Returns its exit code.
  int Run(const std::string& placement, const std::string& flags) {
    return std::system(absl::StrCat("cd ", dir_.path(), " && timeout 60 ", GetParam().path, " ", placement,
                                    " ", TANDEM_BINARY, " run ", flags, " > ", log_, " 2>&1")
                           .c_str());
  }
  std::string OneANode() const { return absl::StrCat(GetParam().one_a_node, rsh_); }
  std::string Said() const { return ReadFile(log_); }
  std::string RendezvousHandler() const {
    return absl::StrCat("--rdzv-backend c10d --rdzv-endpoint ", endpoint_,
                        " --rdzv-conf is_host=false,lease=10");
  }

  testing::TempDir dir_;
  const std::string rsh_ = dir_.File("rsh"), log_ = dir_.File("log");
  std::unique_ptr<TandemProcess> store_;
  std::string endpoint_;
};

TEST_P(MpirunTest, NodesAndRanksComeFromMpirun) {
  ASSERT_EQ(
      Run(OneANode(), absl::StrCat(RendezvousHandler(),
                                   " --nproc-per-node 2 /bin/sh -c "
                                   "'echo at $RANK/$WORLD_SIZE of node $GROUP_RANK/$GROUP_WORLD_SIZE'")),
      0)
      << Said();
  EXPECT_THAT(Said(), AllOf(HasSubstr("at 0/4 of node 0/2"), HasSubstr("at 1/4 of node 0/2"),
                            HasSubstr("at 2/4 of node 1/2"), HasSubstr("at 3/4 of node 1/2")));
  EXPECT_THAT(Said(), HasSubstr("--nnodes 2 --node-rank 1"));
}

TEST_P(MpirunTest, AFailureEndsAllNodesWithItsExitCode) {
  // Open MPI itself ends the others when the first launcher ends; that is the same code.
  EXPECT_EQ(WEXITSTATUS(Run(OneANode(), absl::StrCat(RendezvousHandler(),
                                                     " /bin/sh -c 'if [ $RANK = 1 ]; then exit 9; fi; "
                                                     "exec tail -f /dev/null'"))),
            9)
      << Said();
  EXPECT_THAT(Said(), HasSubstr("worker/1 (pid "));
}

TEST_P(MpirunTest, WithoutAPlaceToMeetItSaysWhatIsMissing) {
  EXPECT_NE(Run(OneANode(), "/bin/true"), 0);
  EXPECT_THAT(Said(), HasSubstr("it does not say where node 0 is; give --rdzv-endpoint"));
}

TEST_P(MpirunTest, SeveralLaunchersOnOneNodeAreRefused) {
  EXPECT_NE(Run(GetParam().two_on_one, absl::StrCat(RendezvousHandler(), " /bin/true")), 0);
  EXPECT_THAT(Said(), HasSubstr("has started 2 copies of `tandem run` on this node"));
}

INSTANTIATE_TEST_SUITE_P(Mpis, MpirunTest, ::testing::Values(kOpenMpi, kMpich),
                         [](const auto& mpi) { return std::string(mpi.param.name); });

}  // namespace
}  // namespace tandem::launcher
