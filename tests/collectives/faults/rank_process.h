// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_COLLECTIVES_FAULTS_RANK_PROCESS_H_
#define TANDEM_TESTS_COLLECTIVES_FAULTS_RANK_PROCESS_H_

// Runs fault_rank as a child of the test.

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace tandem::collectives {

// Not thread-safe. The destructor kills the process.
class RankProcess {
 public:
  // `marker` goes into the process's environment, so that its leftovers can be found.
  explicit RankProcess(const std::vector<std::string>& arguments, absl::string_view marker = "");
  ~RankProcess();
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;

  // Reads until a line "@<word>" or "@<word> text" comes; `*text` gets the text. Returns false if the process
  // has ended, or `deadline` is over, before that.
  bool WaitFor(absl::string_view word, absl::Time deadline, std::string* text = nullptr);
  // Sends the line for which a scenario waits.
  void Continue();
  void Kill();  // -9, and waits for the end
  // Waits for the process's end; returns false if it has not ended by `deadline`.
  bool WaitForEnd(absl::Time deadline);
  // Returns everything that it printed, for messages of failed tests.
  const std::string& output() const { return output_; }

 private:
  bool ReadSome(absl::Time deadline);

  pid_t pid_ = -1;
  int in_ = -1, out_ = -1;
  std::string output_;
  size_t searched_ = 0;  // lines before this have been looked at
};

}  // namespace tandem::collectives

#endif  // TANDEM_TESTS_COLLECTIVES_FAULTS_RANK_PROCESS_H_
