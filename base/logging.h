// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BASE_LOGGING_H_
#define TANDEM_BASE_LOGGING_H_

// Writes log messages to stderr, one per line: "I 12:34:56.789 worker/0 text". Thread-safe. Callers build the
// text with absl::StrCat. The backend (spdlog) is not visible in this header, so that including it is cheap.

#include "absl/strings/string_view.h"

namespace tandem {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Sets the process's name ("worker/0"), which is shown on every line. Should be called once, early in main().
void SetLogName(absl::string_view name);
// Messages below `level` are dropped. The default is the environment variable TANDEM_LOG (debug, info,
// warning, error), or kInfo.
void SetLogLevel(LogLevel level);

// Writes one message.
void Log(LogLevel level, absl::string_view text);
inline void LogDebug(absl::string_view text) { Log(LogLevel::kDebug, text); }
inline void LogInfo(absl::string_view text) { Log(LogLevel::kInfo, text); }
inline void LogWarning(absl::string_view text) { Log(LogLevel::kWarning, text); }
inline void LogError(absl::string_view text) { Log(LogLevel::kError, text); }

}  // namespace tandem

#endif  // TANDEM_BASE_LOGGING_H_
