// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/processes/self_process.h"

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "tests/testing/processes/processes.h"

namespace tandem::testing {

SelfProcess::SelfProcess(const std::string& test, const std::map<std::string, std::string>& variables) {
  std::vector<std::string> words = {"/proc/self/exe", "--gtest_filter=" + test,
                                    "--gtest_also_run_disabled_tests", "--gtest_brief=1"};
  std::vector<std::string> environment;
  for (const auto& [name, value] : variables) environment.push_back(absl::StrCat(name, "=", value));
  for (char** one = environ; *one != nullptr; ++one) environment.push_back(*one);
  std::vector<char*> argv, envp;
  for (std::string& word : words) argv.push_back(word.data());
  for (std::string& variable : environment) envp.push_back(variable.data());
  argv.push_back(nullptr);
  envp.push_back(nullptr);
  TANDEM_CHECK(::posix_spawn(&pid_, "/proc/self/exe", nullptr, nullptr, argv.data(), envp.data()) == 0);
}

void SelfProcess::Kill() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  pid_ = 0;
}

int SelfProcess::Wait() {
  if (pid_ <= 0 || !AwaitProcessEnd(pid_, absl::Now() + kTestTimeout)) return -1;
  int status = 0;
  ::waitpid(pid_, &status, 0);
  pid_ = 0;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace tandem::testing
