// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_JOB_JOB_ERRORS_H_
#define TANDEM_WORKER_JOB_JOB_ERRORS_H_

// Collects the errors of one job file, so that a user sees all of them at once. Private to worker/job.

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tandem::worker {

// The errors found so far. Not thread-safe.
class JobErrors {
 public:
  explicit JobErrors(absl::string_view file_name) : file_name_(file_name) {}

  // States that everything at and below the dotted `path` comes from `--set <text>` and not from a line of
  // the file.
  void SetOrigin(const std::string& path, absl::string_view text) { origins_[path] = std::string(text); }

  // Adds an error about the field at the dotted `path`. Lines count from 1; line 0 stands for the file as a
  // whole.
  void Add(absl::string_view path, int line, absl::string_view message);

  bool empty() const { return errors_.empty(); }
  // Returns InvalidArgument with one line per error, in the order of the file, or OK if there are no errors.
  absl::Status ToStatus() const;

 private:
  const std::string* Origin(absl::string_view path) const;

  std::string file_name_;
  std::map<std::string, std::string> origins_;  // path -> "key=value"
  std::vector<std::pair<int, std::string>> errors_;
};

// Returns "; did you mean 'optimizer'?" if a candidate is close to what was written, or "" otherwise.
std::string Suggestion(absl::string_view written, const std::vector<std::string>& candidates);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_JOB_JOB_ERRORS_H_
