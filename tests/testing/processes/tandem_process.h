#ifndef TANDEM_TESTS_TESTING_PROCESSES_TANDEM_PROCESS_H_
#define TANDEM_TESTS_TESTING_PROCESSES_TANDEM_PROCESS_H_

// The real `tandem` as a child of the test.

#include <sys/types.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "tests/testing/processes/processes.h"

namespace tandem::testing {

// Not thread-safe. The destructor kills what is left of it.
class TandemProcess {
 public:
  // Starts `tandem args...` with `variables` added to the environment, in `directory` if not empty. A
  // terminal's Ctrl-C is Signal(SIGINT).
  explicit TandemProcess(const std::vector<std::string>& args,
                         const std::map<std::string, std::string>& variables = {},
                         const std::string& directory = "");
  ~TandemProcess();

  pid_t pid() const { return pid_; }
  void Signal(int signal);
  // Reads until `text` has been printed to stdout or stderr; false when the process ended or kTestTimeout was
  // over first.
  bool WaitForOutput(absl::string_view text);
  // Reads until a whole line has been printed to stdout for which `wanted`; each line is shown to it once.
  // False as above.
  bool WaitForLine(const std::function<bool(const std::string& line)>& wanted);
  // Reads all output and waits for the end; the exit code, or 128 + signal, or -1 after kTestTimeout.
  int Wait();
  const std::string& out() const { return text_[0]; }
  const std::string& err() const { return text_[1]; }

 private:
  // Waits for output; false when both streams have ended or the deadline is over.
  bool ReadSome(absl::Time deadline);

  pid_t pid_ = -1;
  int fds_[2] = {-1, -1};
  std::string text_[2];
  size_t lines_seen_ = 0;  // bytes of stdout
  bool ended_ = false;
  int exit_code_ = -1;
};

// Runs to the end.
struct Finished {
  int exit_code;
  std::string out, err;
};
Finished RunTandem(const std::vector<std::string>& args,
                   const std::map<std::string, std::string>& variables = {},
                   const std::string& directory = "");

}  // namespace tandem::testing

#endif  // TANDEM_TESTS_TESTING_PROCESSES_TANDEM_PROCESS_H_
