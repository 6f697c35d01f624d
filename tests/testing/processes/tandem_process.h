// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_TESTING_PROCESSES_TANDEM_PROCESS_H_
#define TANDEM_TESTS_TESTING_PROCESSES_TANDEM_PROCESS_H_

// Runs the real `tandem` program as a child of the test.

#include <sys/types.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "tests/testing/processes/processes.h"

namespace tandem::testing {

// A running `tandem`. Not thread-safe. The destructor kills it if it still runs.
class TandemProcess {
 public:
  // Starts `tandem args...` with `variables` added to the environment, in `directory` if it is not empty.
  // Signal(SIGINT) corresponds to Ctrl-C in a terminal.
  explicit TandemProcess(const std::vector<std::string>& args,
                         const std::map<std::string, std::string>& variables = {},
                         const std::string& directory = "");
  ~TandemProcess();

  pid_t pid() const { return pid_; }
  void Signal(int signal);
  // Reads output until `text` has been printed to stdout or stderr. Returns false if the process ended or
  // kTestTimeout passed first.
  bool WaitForOutput(absl::string_view text);
  // Reads output until a whole line has been printed to stdout for which `wanted` returns true. `wanted` sees
  // each line once. Returns false like WaitForOutput.
  bool WaitForLine(const std::function<bool(const std::string& line)>& wanted);
  // Reads all output and waits for the end. Returns the exit code, 128 + the signal, or -1 after
  // kTestTimeout.
  int Wait();
  const std::string& out() const { return text_[0]; }
  const std::string& err() const { return text_[1]; }

 private:
  // Waits for output. Returns false if both streams have ended or the deadline has passed.
  bool ReadSome(absl::Time deadline);

  pid_t pid_ = -1;
  int fds_[2] = {-1, -1};
  std::string text_[2];
  size_t lines_seen_ = 0;  // bytes of stdout
  bool ended_ = false;
  int exit_code_ = -1;
};

// The result of a program that has ended.
struct Finished {
  int exit_code;
  std::string out, err;
};
// Runs `tandem` until it ends.
Finished RunTandem(const std::vector<std::string>& args,
                   const std::map<std::string, std::string>& variables = {},
                   const std::string& directory = "");

}  // namespace tandem::testing

#endif  // TANDEM_TESTS_TESTING_PROCESSES_TANDEM_PROCESS_H_
