#ifndef TANDEM_BASE_LOGGING_H_
#define TANDEM_BASE_LOGGING_H_

// One line a message, to stderr: "I 12:34:56.789 worker/0 text". Callable from any thread. Build the text
// with absl::StrCat; the backend (spdlog) stays out of this header so that including it costs nothing.

#include "absl/strings/string_view.h"

namespace tandem {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Who is speaking ("worker/0"); shown on every line. Call once, early in main().
void SetLogName(absl::string_view name);
// Messages below `level` are dropped. Default kInfo, or the environment's TANDEM_LOG (debug, info, warning,
// error).
void SetLogLevel(LogLevel level);

void Log(LogLevel level, absl::string_view text);
inline void LogDebug(absl::string_view text) { Log(LogLevel::kDebug, text); }
inline void LogInfo(absl::string_view text) { Log(LogLevel::kInfo, text); }
inline void LogWarning(absl::string_view text) { Log(LogLevel::kWarning, text); }
inline void LogError(absl::string_view text) { Log(LogLevel::kError, text); }

}  // namespace tandem

#endif  // TANDEM_BASE_LOGGING_H_
