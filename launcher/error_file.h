#ifndef TANDEM_LAUNCHER_ERROR_FILE_H_
#define TANDEM_LAUNCHER_ERROR_FILE_H_

#include <string>

namespace tandem::launcher {

// The message that a program has left at TORCHELASTIC_ERROR_FILE (PyTorch's @record does), on one line; ""
// without such a file or message.
std::string ReadErrorFile(const std::string& path);

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_ERROR_FILE_H_
