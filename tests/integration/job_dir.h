#ifndef TANDEM_TESTS_INTEGRATION_JOB_DIR_H_
#define TANDEM_TESTS_INTEGRATION_JOB_DIR_H_

// A directory with a small job in it, and the program run there.

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
  // Writes log.tsv, a planted click log of `rows` examples, and job.yaml, which trains a DeepFM on it in sync
  // mode.
  explicit JobDir(int rows = 4000);

  std::string File(absl::string_view name) const { return dir_.File(name); }
  void Write(absl::string_view name, absl::string_view text) const;

  // `tandem args...` in the directory, with a mark in its environment that its children inherit.
  testing::Finished Run(const Args& args) const;
  // `tandem run ... -- tandem train JOB more...`.
  Args LaunchArgs(int servers, int workers, const Args& more, const std::string& job = "job.yaml") const;
  testing::Finished Train(int servers, int workers, const Args& more,
                          const std::string& job = "job.yaml") const;
  // The same, which must succeed; its --report.
  Json TrainAndReport(int servers, int workers, Args more, const std::string& job = "job.yaml") const;

  // What `tandem ckpt digest` says of a checkpoint directory.
  std::string Digest(const std::string& directory) const;
  // The directories of the committed checkpoints, by step.
  Args Checkpoints(const std::string& directory) const;

  std::map<std::string, std::string> Mark() const { return {{"TANDEM_TEST_MARK", dir_.path()}}; }
  // The one process of this directory with NAME=VALUE in its environment; 0 when there is none.
  pid_t ProcessWith(const std::string& variable) const;
  // The files in /dev/shm that processes of this directory have mapped.
  std::set<std::string> SharedMemory() const;
  // Waits until no process of this directory is left.
  ::testing::AssertionResult NoLeaks() const;

 private:
  testing::TempDir dir_;
};

// What training came to, without what time it took.
Json Figures(const Json& report);

// A TCP port of the loopback interface that was free a moment ago.
int FreePort();

}  // namespace tandem::integration

#endif  // TANDEM_TESTS_INTEGRATION_JOB_DIR_H_
