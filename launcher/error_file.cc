// SPDX-License-Identifier: Apache-2.0
#include "launcher/error_file.h"

#include <string>

#include "absl/status/statusor.h"
#include "base/json.h"
#include "base/read_file.h"
#include "nlohmann/json.hpp"

namespace tandem::launcher {

std::string ReadErrorFile(const std::string& path) {
  const absl::StatusOr<std::string> written = ReadFile(path);
  if (!written.ok()) return "";
  using Json = nlohmann::json;
  const Json json = ParseJson(*written);
  // {"message": "text"} or {"message": {"message": "text", "extraInfo": ...}}
  const Json* at = json.is_object() && json.contains("message") ? &json["message"] : nullptr;
  if (at != nullptr && at->is_object() && at->contains("message")) at = &(*at)["message"];
  if (at == nullptr || !at->is_string()) return "";
  const std::string text = at->get<std::string>();
  return text.substr(0, text.find('\n'));
}

}  // namespace tandem::launcher
