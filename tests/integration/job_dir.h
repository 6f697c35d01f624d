// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_INTEGRATION_JOB_DIR_H_
#define TANDEM_TESTS_INTEGRATION_JOB_DIR_H_

// A directory with a small job, and functions that run `tandem` in it.

#include <sys/types.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/processes/tandem_process.h"
#include "tests/testing/temp_dir.h"

namespace tandem::integration {

using Json = nlohmann::json;
using Args = std::vector<std::string>;

class JobDir {
 public:
  // Writes log.tsv, a planted click log of `rows` examples whose columns have at most `vocabulary` values,
  // and job.yaml, which trains a DeepFM on it in sync mode.
  explicit JobDir(int rows = 4000, int vocabulary = 100);

  std::string File(absl::string_view name) const { return dir_.File(name); }
  void Write(absl::string_view name, absl::string_view text) const;

  // Runs `tandem args...` in the directory, with Mark() in the environment, which child processes inherit.
  testing::Finished Run(const Args& args) const;
  // LaunchArgs returns the arguments of `tandem run ... -- tandem train JOB more...`, with --overwrite unless
  // `more` resumes a run; Train runs them.
  Args LaunchArgs(int servers, int workers, const Args& more, const std::string& job = "job.yaml") const;
  testing::Finished Train(int servers, int workers, const Args& more,
                          const std::string& job = "job.yaml") const;
  // Does the same, expects success and returns the --report.
  Json TrainAndReport(int servers, int workers, Args more, const std::string& job = "job.yaml") const;

  // Returns the output of `tandem ckpt digest` for a checkpoint directory.
  std::string Digest(const std::string& directory) const;
  // Returns the directories of the committed checkpoints, by step.
  Args Checkpoints(const std::string& directory) const;

  std::map<std::string, std::string> Mark() const { return {{"TANDEM_TEST_MARK", dir_.path()}}; }
  // Returns the only process of this directory with NAME=VALUE in its environment, or 0.
  pid_t ProcessWith(const std::string& variable) const;
  // Returns the files in /dev/shm that processes of this directory have mapped.
  std::set<std::string> SharedMemory() const;
  // Waits until no process of this directory exists.
  ::testing::AssertionResult NoLeaks() const;

 private:
  testing::TempDir dir_;
};

// Returns the results of training, without times.
Json Figures(const Json& report);

// Returns a TCP port of the loopback interface that was free a moment ago.
int FreePort();

}  // namespace tandem::integration

#endif  // TANDEM_TESTS_INTEGRATION_JOB_DIR_H_
