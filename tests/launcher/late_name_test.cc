// SPDX-License-Identifier: Apache-2.0
// Tests a launcher that starts before the host at which the nodes meet has a name. It has name services of
// its own: the files /etc/hosts and /etc/resolv.conf of a mount namespace.

#include <cstdlib>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/host/port_reservation.h"
#include "tests/testing/processes/tandem_process.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::launcher {
namespace {

using ::testing::HasSubstr;
using testing::ReadFile;

// launch.sh BACKEND PORT RANK FLAGS...: runs a launcher that knows the names in the file `hosts`.
constexpr char kLaunch[] = R"(
backend=$1 port=$2 rank=$3; shift 3
exec unshare -m sh -ec 'mount --bind hosts /etc/hosts; mount --bind resolv.conf /etc/resolv.conf; exec "$@"' sh \
  $TANDEM run --nnodes 2 --node-rank $rank --rdzv-backend $backend --rdzv-id job --log-dir logs-$rank \
  --rdzv-endpoint tandem-node0:$port "$@" -- sh -c 'echo this is rank $RANK' > $rank.log 2>&1
)";

class LateNameTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (std::system("unshare -m true 2> /dev/null") != 0) GTEST_SKIP() << "a mount namespace needs root here";
    std::ofstream(dir_.File("hosts")) << "127.0.0.1 localhost\n";
    // No name server listens there.
    std::ofstream(dir_.File("resolv.conf")) << "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n";
    std::ofstream(dir_.File("launch.sh")) << kLaunch;
  }
  // Runs a shell script in the test's folder. Returns its exit code.
  int Run(const std::string& script) {
    std::ofstream(dir_.File("script.sh")) << "export TANDEM=" << TANDEM_BINARY << "\n" << script;
    return std::system(
        absl::StrCat("cd ", dir_.path(), " && timeout 100 sh -e script.sh 2> script.log").c_str());
  }
  std::string Log(const std::string& name) { return ReadFile(dir_.File(name)); }

  testing::TempDir dir_;
};

TEST_P(LateNameTest, TheLauncherLooksAgainUntilTheNameIsKnown) {
  std::string port;
  {
    TANDEM_ASSERT_OK_AND_ASSIGN(const auto reserved, PortReservation::Keep(0));
    port = absl::StrCat(reserved->port());
  }
  const std::string launch = absl::StrCat("sh launch.sh ", GetParam(), " ", port, " ");
  const int result = Run(absl::StrCat(launch, "1 & one=$!\n",  //
                                      "until grep -qs 'looking again' 1.log; do kill -0 $one; done\n",
                                      "echo '127.0.0.1 tandem-node0' >> hosts\n", launch, "0\nwait $one\n"));
  EXPECT_EQ(result, 0) << Log("0.log") << Log("1.log") << Log("script.log");
  EXPECT_THAT(Log("1.log"), HasSubstr("cannot find host 'tandem-node0'"));
  EXPECT_THAT(Log("1.log"), HasSubstr("this is rank 1"));
  EXPECT_THAT(Log("0.log"), HasSubstr("this is rank 0"));
}

INSTANTIATE_TEST_SUITE_P(Backends, LateNameTest, ::testing::Values("static", "c10d"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(LateNameTest, ANameThatStaysUnknownEndsTheLauncherAfterTheJoinTimeout) {
  for (const char* backend : {GetParam(), "etcd"}) {
    const int result =
        Run(absl::StrCat("! sh launch.sh ", backend, " 29400 1 --rdzv-conf join_timeout=0.3\n"));
    EXPECT_EQ(result, 0) << Log("1.log") << Log("script.log");
    EXPECT_THAT(Log("1.log"), HasSubstr("cannot find host 'tandem-node0'"));
    EXPECT_THAT(Log("1.log"), HasSubstr("for 300ms"));
  }
}

TEST_P(LateNameTest, ASignalEndsTheWait) {
  const int result = Run(absl::StrCat("sh launch.sh ", GetParam(), " 29400 1 & one=$!\n",
                                      "until grep -qs 'looking again' 1.log; do kill -0 $one; done\n",
                                      "kill -TERM $one; code=0; wait $one || code=$?; test $code = 143\n"));
  EXPECT_EQ(result, 0) << Log("1.log") << Log("script.log");
  EXPECT_THAT(Log("1.log"), HasSubstr("stopping on SIGTERM"));
}

}  // namespace
}  // namespace tandem::launcher
