// SPDX-License-Identifier: Apache-2.0
#include "launcher/error_file.h"

#include <sys/stat.h>

#include <string>

#include "absl/status/statusor.h"
#include "base/json.h"
#include "base/read_file.h"
#include "collectives/group/peer_failure.h"
#include "nlohmann/json.hpp"

namespace tandem::launcher {

ErrorReport ReadErrorReport(const std::string& path) {
  ErrorReport report;
  struct stat info;
  if (path.empty()) return report;
  report.of_a_peer = ::stat(collectives::PeerFailurePath(path).c_str(), &info) == 0;
  if (::stat(path.c_str(), &info) != 0) return report;
  report.written_ns = int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
  const absl::StatusOr<std::string> written = ReadFile(path);
  if (!written.ok()) return report;
  using Json = nlohmann::json;
  const Json json = ParseJson(*written);
  // {"message": "text"} or {"message": {"message": "text", "extraInfo": ...}}
  const Json* at = json.is_object() && json.contains("message") ? &json["message"] : nullptr;
  if (at != nullptr && at->is_object() && at->contains("message")) at = &(*at)["message"];
  if (at == nullptr || !at->is_string()) return report;
  const std::string text = at->get<std::string>();
  report.message = text.substr(0, text.find('\n'));
  return report;
}

void RemoveErrorReport(const std::string& path) { collectives::ForgetFailure(path); }

}  // namespace tandem::launcher
