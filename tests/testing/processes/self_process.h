#ifndef TANDEM_TESTS_TESTING_PROCESSES_SELF_PROCESS_H_
#define TANDEM_TESTS_TESTING_PROCESSES_SELF_PROCESS_H_

#include <sys/types.h>

#include <map>
#include <string>

namespace tandem::testing {

// This very test program as another process, in one of its DISABLED tests. Not thread-safe. Killed with the
// object.
class SelfProcess {
 public:
  // `test`: "FileStoreChild.DISABLED_Adds". `variables` are added to the environment.
  SelfProcess(const std::string& test, const std::map<std::string, std::string>& variables);
  ~SelfProcess() { Kill(); }
  SelfProcess(const SelfProcess&) = delete;
  SelfProcess& operator=(const SelfProcess&) = delete;

  void Kill();
  // The exit code; -1 if a signal has ended it, or if it has not ended within kTestTimeout (processes.h).
  int Wait();

 private:
  pid_t pid_ = 0;
};

}  // namespace tandem::testing

#endif  // TANDEM_TESTS_TESTING_PROCESSES_SELF_PROCESS_H_
