#include "cli/agent/workers/error_file.h"

#include <fstream>
#include <iterator>
#include <string>

#include "base/text/json.h"
#include "nlohmann/json.hpp"

namespace tandem::cli {

std::string ReadErrorFile(const std::string& path) {
  std::ifstream in(path);
  if (!in) return "";
  using Json = nlohmann::json;
  const Json json = ParseJson(std::string(std::istreambuf_iterator<char>(in), {}));
  // {"message": "text"} or {"message": {"message": "text", "extraInfo": ...}}
  const Json* at = json.is_object() && json.contains("message") ? &json["message"] : nullptr;
  if (at != nullptr && at->is_object() && at->contains("message")) at = &(*at)["message"];
  if (at == nullptr || !at->is_string()) return "";
  const std::string text = at->get<std::string>();
  return text.substr(0, text.find('\n'));
}

}  // namespace tandem::cli
