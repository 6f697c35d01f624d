#ifndef TANDEM_WORKER_JOB_JOB_ERRORS_H_
#define TANDEM_WORKER_JOB_JOB_ERRORS_H_

// The errors of one job file, collected so that a user sees all of them at once. Private to worker/job.

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tandem::worker {

// Not thread-safe.
class JobErrors {
 public:
  explicit JobErrors(absl::string_view file_name) : file_name_(file_name) {}

  // Everything at and below the dotted `path` comes from `--set <text>`, not from a line of the file.
  void SetOrigin(const std::string& path, absl::string_view text) { origins_[path] = std::string(text); }

  // `line` counts from 1; 0: the file as a whole.
  void Add(absl::string_view path, int line, absl::string_view message);

  bool empty() const { return errors_.empty(); }
  // InvalidArgument with one line per error, in the order of the file; OK without errors.
  absl::Status ToStatus() const;

 private:
  const std::string* Origin(absl::string_view path) const;

  std::string file_name_;
  std::map<std::string, std::string> origins_;  // path -> "key=value"
  std::vector<std::pair<int, std::string>> errors_;
};

// "; did you mean 'optimizer'?" when a candidate is near enough to what was written, else "".
std::string Suggestion(absl::string_view written, const std::vector<std::string>& candidates);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_JOB_JOB_ERRORS_H_
