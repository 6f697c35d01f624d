#ifndef TANDEM_TESTS_COLLECTIVES_FAULTS_RANK_PROCESS_H_
#define TANDEM_TESTS_COLLECTIVES_FAULTS_RANK_PROCESS_H_

// fault_rank as a child of the test.

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace tandem::collectives {

// Not thread-safe. The destructor kills it.
class RankProcess {
 public:
  // `marker` goes into its environment, so that what it leaves behind can be found.
  explicit RankProcess(const std::vector<std::string>& arguments, absl::string_view marker = "");
  ~RankProcess();
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;

  // Reads until a line "@<word>" or "@<word> text" comes; `*text` is its rest. False when the process has
  // ended, or `deadline` is over, before that.
  bool WaitFor(absl::string_view word, absl::Time deadline, std::string* text = nullptr);
  // Sends the line for which a scenario waits.
  void Continue();
  void Kill();  // -9, and waits for the end
  // Waits for the end; false if it has not come by `deadline`.
  bool WaitForEnd(absl::Time deadline);
  // All that it printed, for messages of failed tests.
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
