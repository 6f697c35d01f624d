// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_CHECKPOINT_REPLACE_DIRECTORY_H_
#define TANDEM_PS_CHECKPOINT_REPLACE_DIRECTORY_H_

// Moves a directory to a name that may be in use. Private to the folder.

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tandem::ps {

// The system calls that move directories. They return 0, or -1 with errno set. Tests replace them by ones
// that fail.
struct DirectoryMoves {
  DirectoryMoves();  // rename(2), and renameat2(2) with RENAME_EXCHANGE

  std::function<int(const char* from, const char* to)> rename;
  std::function<int(const char* from, const char* to)> exchange;
};

// Moves directory `from` to `to`. If `to` exists, it is replaced: atomically if the file system can exchange
// two directories, otherwise it is moved to "replaced-NAME" beside it first. Returns the path at which the
// replaced directory is now, for the caller to remove; empty if there was none.
//
// After an error both directories are where they were, unless moving `to` back fails as well, which the error
// says; FinishReplacements then repairs it.
absl::StatusOr<std::string> ReplaceDirectory(const std::string& from, const std::string& to,
                                             const DirectoryMoves& moves = DirectoryMoves());

// Ends the replacements of checkpoints under `root` that an error or a crash interrupted: a directory
// "replaced-step-N" is moved back to step-N if that does not exist, and removed otherwise.
absl::Status FinishReplacements(const std::string& root);

}  // namespace tandem::ps

#endif  // TANDEM_PS_CHECKPOINT_REPLACE_DIRECTORY_H_
