// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_TESTING_PROCESSES_SELF_PROCESS_H_
#define TANDEM_TESTS_TESTING_PROCESSES_SELF_PROCESS_H_

#include <sys/types.h>

#include <map>
#include <string>

namespace tandem::testing {

// Runs this test program as another process, which executes one of its DISABLED tests. Not thread-safe.
// Killed with the object.
class SelfProcess {
 public:
  // `test` has the form "FileStoreChild.DISABLED_Adds". `variables` are added to the environment.
  SelfProcess(const std::string& test, const std::map<std::string, std::string>& variables);
  ~SelfProcess() { Kill(); }
  SelfProcess(const SelfProcess&) = delete;
  SelfProcess& operator=(const SelfProcess&) = delete;

  pid_t pid() const { return pid_; }
  void Kill();
  // Waits for the end and returns the exit code, or -1 if a signal has ended the process or it has not ended
  // within kTestTimeout (processes.h).
  int Wait();

 private:
  pid_t pid_ = 0;
};

}  // namespace tandem::testing

#endif  // TANDEM_TESTS_TESTING_PROCESSES_SELF_PROCESS_H_
