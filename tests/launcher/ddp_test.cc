// SPDX-License-Identifier: Apache-2.0
// Runs an unmodified PyTorch script under `tandem run` and under torchrun.

#include <sys/stat.h>

#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/processes/tandem_process.h"
#include "tests/testing/temp_dir.h"

namespace tandem::launcher {
namespace {

using testing::Finished;
using ::testing::HasSubstr;
using testing::ReadFile;
using testing::RunTandem;

constexpr char kPython[] = "/usr/bin/python3";  // Debian's, whose python3-torch it is
constexpr char kTorchrun[] = "/usr/bin/torchrun";

TEST(DdpTest, AnUnmodifiedScriptLearnsTheSameAsUnderTorchrun) {
  if (std::system(absl::StrCat(kPython, " -c 'import torch.distributed' 2>/dev/null").c_str()) != 0) {
    GTEST_SKIP() << "python3-torch is not installed";
  }
  testing::TempDir dir;
  const std::string script = TANDEM_SOURCE_DIR "/tests/launcher/ddp.py";
  const Finished ours =
      RunTandem({"run", "--nproc-per-node", "2", "--log-dir", dir.path(), script, dir.File("ours")},
                {{"PYTHON_EXEC", kPython}});
  ASSERT_EQ(ours.exit_code, 0) << ours.err;
  const std::string learned = ReadFile(dir.File("ours"));
  ASSERT_THAT(learned, ::testing::StartsWith("2 "));
  ASSERT_GT(learned.size(), 1000u);

  struct stat info;
  if (::stat(kTorchrun, &info) != 0) GTEST_SKIP() << "there is no " << kTorchrun << " to compare with";
  // torchrun chooses the port. Debian's torchrun 1.13 fails under Python 3.11 unless streams are given (-r,
  // -t). Its output matters only if it fails.
  const std::string command = absl::StrCat(
      kTorchrun, " --nproc_per_node 2 -r 1 -t 1 --rdzv_backend c10d --rdzv_endpoint localhost:0 --log_dir ",
      dir.path(), " ", script, " ", dir.File("theirs"), " > ", dir.File("torchrun.log"), " 2>&1");
  ASSERT_EQ(std::system(command.c_str()), 0) << ReadFile(dir.File("torchrun.log"));
  EXPECT_EQ(ReadFile(dir.File("theirs")), learned);
}

TEST(DdpTest, AFailureThatPythonRecordedIsTheRootCause) {
  if (std::system(absl::StrCat(kPython, " -c 'import torch.distributed.elastic' 2>/dev/null").c_str()) != 0) {
    GTEST_SKIP() << "python3-torch is not installed";
  }
  testing::TempDir dir;
  const Finished finished =
      RunTandem({"run", "--nproc-per-node", "2", "--log-dir", dir.path(), "--", kPython, "-c",
                 "import os, signal\n"
                 "from torch.distributed.elastic.multiprocessing.errors import record\n"
                 "@record\n"
                 "def main():\n"
                 "    if os.environ['RANK'] == '1':\n"
                 "        raise ValueError('the data is gone')\n"
                 "    signal.pause()\n"
                 "main()\n"});
  EXPECT_EQ(finished.exit_code, 1);
  EXPECT_THAT(finished.err, HasSubstr("worker/1 (pid "));
  EXPECT_THAT(finished.err, HasSubstr("it said: ValueError: the data is gone"));
}

}  // namespace
}  // namespace tandem::launcher
