// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_GROUP_PEER_FAILURE_H_
#define TANDEM_COLLECTIVES_GROUP_PEER_FAILURE_H_

// Notes for the launcher that a failure of this process has its cause in another process. When a rank fails,
// the groups of its peers break, and the peers may exit before it does. With the notes, the launcher knows
// which of the processes that have exited is the cause.
//
// The functions take the path of the launcher's error file (TORCHELASTIC_ERROR_FILE). "": no effect.

#include <string>

#include "absl/status/status.h"

namespace tandem::collectives {

// Returns the path of the error file that the environment names, or "".
std::string ErrorFileFromEnv();

// Returns the path of the note of the process with this error file.
std::string PeerFailurePath(const std::string& error_file);

// Writes the note if `error` is one with which a group breaks because another rank has left it, has aborted
// it or has died: Unavailable or Aborted. Writes the error into the error file too, in torchelastic's format,
// if there is none. Its time stamp is a second after the present: torchrun takes the oldest error for the
// cause, and compares whole seconds. A file that cannot be written is left out. Thread-safe.
void NotePeerFailure(const std::string& error_file, const absl::Status& error);

// Removes the note and the error file: the process goes on after an earlier failure.
void ForgetFailure(const std::string& error_file);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_GROUP_PEER_FAILURE_H_
