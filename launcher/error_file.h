// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_LAUNCHER_ERROR_FILE_H_
#define TANDEM_LAUNCHER_ERROR_FILE_H_

#include <cstdint>
#include <string>

namespace tandem::launcher {

// The report of a program about its own failure. The file that TORCHELASTIC_ERROR_FILE names has it
// (PyTorch's
// @record and Tandem's Python package write it), with a note beside it (collectives/group/peer_failure.h).
struct ErrorReport {
  std::string message;     // its first line; "" if there is no such file or no message in it
  int64_t written_ns = 0;  // when the file was written, by the file system's clock; 0: there is none
  bool of_a_peer = false;  // whether another process caused the error
};

ErrorReport ReadErrorReport(const std::string& path);

// Removes the file and the note, which an earlier process may have left.
void RemoveErrorReport(const std::string& path);

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_ERROR_FILE_H_
