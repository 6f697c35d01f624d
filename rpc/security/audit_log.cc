// SPDX-License-Identifier: Apache-2.0
#include "rpc/security/audit_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/logging.h"
#include "nlohmann/json.hpp"

namespace tandem::rpc {
namespace {

std::string& ChosenFile() {
  static auto* const path = new std::string;
  return *path;
}

std::string ToLine(const AuditLog::Event& event, int more_refusals) {
  nlohmann::ordered_json line;
  line["time"] = absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone());
  line["server"] = event.server;
  line["verdict"] = event.verdict.ok() ? "allowed" : "refused";
  line["method"] = event.method;
  line["caller"] = event.caller;
  line["credential"] = event.credential;
  line["peer"] = event.peer;
  if (!event.verdict.ok()) line["reason"] = std::string(event.verdict.message());
  if (more_refusals > 0) line["refusals_not_recorded"] = more_refusals;
  // Names are bytes of strangers.
  return absl::StrCat(line.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace),
                      "\n");
}

}  // namespace

absl::StatusOr<std::unique_ptr<AuditLog>> AuditLog::Open(const std::string& path) {
  ipc::Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.valid()) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open the audit log ", path));
  return std::unique_ptr<AuditLog>(new AuditLog(path, std::move(file)));
}

void AuditLog::UseFile(const std::string& path) { ChosenFile() = path; }

AuditLog* AuditLog::OfProcess() {
  static AuditLog* const log = []() -> AuditLog* {
    const char* const variable = std::getenv(kAuditVariable);
    const std::string path = variable != nullptr && *variable != '\0' ? variable : ChosenFile();
    if (path.empty()) return nullptr;
    absl::StatusOr<std::unique_ptr<AuditLog>> opened = Open(path);
    if (!opened.ok()) LogWarning(absl::StrCat(kAuditVariable, ": ", opened.status().message()));
    return opened.ok() ? opened->release() : nullptr;
  }();
  return log;
}

void AuditLog::Record(const Event& event) {
  absl::MutexLock lock(&mutex_);
  int more = 0;
  if (!event.verdict.ok()) {
    const absl::Time now = MonotonicNow();
    if (now - second_ >= absl::Seconds(1)) {
      more = refusals_ - kRefusalsPerSecond;
      second_ = now;
      refusals_ = 0;
    }
    if (++refusals_ > kRefusalsPerSecond) return;
  }
  Write(ToLine(event, more));
}

void AuditLog::Write(const std::string& line) {
  // One write(2) at the end of a file: lines of several processes do not mix.
  const ssize_t written = ::write(file_.get(), line.data(), line.size());
  if (written == static_cast<ssize_t>(line.size()) || failed_) return;
  failed_ = true;
  LogError(
      absl::StrCat("cannot write the audit log ", path_, ": ", absl::ErrnoToStatus(errno, "").message()));
}

}  // namespace tandem::rpc
