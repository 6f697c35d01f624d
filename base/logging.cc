// SPDX-License-Identifier: Apache-2.0
#include "base/logging.h"

#include <cstdlib>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"

namespace tandem {
namespace {

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

// The only process-wide object of Tandem besides tracing: a process has one stderr. Never destroyed, so that
// threads may log while the process ends.
spdlog::logger* Logger() {
  static spdlog::logger* logger = [] {
    auto* made = new spdlog::logger("tandem", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("%L %T.%e %v");
    if (const char* level = std::getenv("TANDEM_LOG")) made->set_level(spdlog::level::from_str(level));
    return made;
  }();
  return logger;
}

}  // namespace

void SetLogName(absl::string_view name) {
  Logger()->set_pattern(name.empty() ? "%L %T.%e %v" : absl::StrCat("%L %T.%e ", name, " %v"));
}
void SetLogLevel(LogLevel level) { Logger()->set_level(ToSpdlog(level)); }
void Log(LogLevel level, absl::string_view text) {
  Logger()->log(ToSpdlog(level), spdlog::string_view_t(text.data(), text.size()));
}

}  // namespace tandem
