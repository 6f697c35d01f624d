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

// Where a part of a job comes from.
struct JobOrigin {
  std::string name;       // the file, or "--set key=value"
  std::string directory;  // in which relative paths are looked up; empty: the current directory
  int order = 0;          // errors of smaller orders come first
  bool has_lines = true;  // false for an override
};

// The errors found so far, and which part of the job comes from which file or override. Not thread-safe.
class JobErrors {
 public:
  // `file_name` is the file of everything that has no other origin.
  explicit JobErrors(absl::string_view file_name, absl::string_view directory = "")
      : file_{.name = std::string(file_name), .directory = std::string(directory)} {}

  // States that everything at and below the dotted `path` comes from `--set <text>` and not from a line of
  // the file.
  void SetOrigin(const std::string& path, absl::string_view text);
  // States that everything at and below `path`, except for paths below it that have an origin of their own,
  // comes from `origin`.
  void SetOrigin(const std::string& path, JobOrigin origin) { origins_[path] = std::move(origin); }
  // Forget the origin of `path`, or of it and everything below it: it becomes that of the nearest path above.
  void ClearOrigin(const std::string& path) { origins_.erase(path); }
  void ClearOrigins(const std::string& path);
  // Returns the origin that was set for exactly this path, or null.
  const JobOrigin* FindOrigin(const std::string& path) const;
  // Returns the origin of the field at the dotted `path`: its own, or that of the nearest path above.
  const JobOrigin& OriginOf(absl::string_view path) const;

  // Adds an error of `origin`, such as that a file cannot be read.
  void AddTo(const JobOrigin& origin, int line, absl::string_view message);
  // Adds an error about the field at the dotted `path`. Lines count from 1; line 0 stands for the file as a
  // whole.
  void Add(absl::string_view path, int line, absl::string_view message);

  bool empty() const { return errors_.empty(); }
  // Returns InvalidArgument with one line per error, in the order of the file, or OK if there are no errors.
  absl::Status ToStatus() const;

 private:
  JobOrigin file_;
  std::map<std::string, JobOrigin> origins_;                         // by path
  std::vector<std::pair<std::pair<int, int>, std::string>> errors_;  // by (order, line)
};

// Returns "; did you mean 'optimizer'?" if a candidate is close to what was written, or "" otherwise.
std::string Suggestion(absl::string_view written, const std::vector<std::string>& candidates);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_JOB_JOB_ERRORS_H_
