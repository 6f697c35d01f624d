// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_LAUNCHER_ERROR_FILE_H_
#define TANDEM_LAUNCHER_ERROR_FILE_H_

#include <string>

namespace tandem::launcher {

// Returns the first line of the error message that a program left in the file `path`, the one that
// TORCHELASTIC_ERROR_FILE names (PyTorch's @record writes it). Returns "" if there is no such file or no
// message in it.
std::string ReadErrorFile(const std::string& path);

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_ERROR_FILE_H_
