// SPDX-License-Identifier: Apache-2.0
#include "collectives/group/peer_failure.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/ipc/descriptor.h"
#include "nlohmann/json.hpp"

namespace tandem::collectives {
namespace {

// Writes a new file. Does nothing if there is one, or if it cannot be written.
void WriteNewFile(const std::string& path, absl::string_view text) {
  const ipc::Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!file.valid()) return;
  [[maybe_unused]] const ssize_t ignored = ::write(file.get(), text.data(), text.size());
}

}  // namespace

std::string ErrorFileFromEnv() {
  const char* const path = std::getenv("TORCHELASTIC_ERROR_FILE");
  return path == nullptr ? "" : path;
}

std::string PeerFailurePath(const std::string& error_file) { return absl::StrCat(error_file, ".peer"); }

void NotePeerFailure(const std::string& error_file, const absl::Status& error) {
  if (error_file.empty() || (!absl::IsUnavailable(error) && !absl::IsAborted(error))) return;
  const std::string text(error.message());
  WriteNewFile(PeerFailurePath(error_file), absl::StrCat(text, "\n"));
  const std::string seconds = absl::StrCat(absl::ToUnixSeconds(absl::Now()) + 1);
  const nlohmann::json report = {
      {"message", {{"message", text}, {"extraInfo", {{"py_callstack", text}, {"timestamp", seconds}}}}}};
  // A message may quote bytes that are not UTF-8.
  WriteNewFile(error_file, report.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

void ForgetFailure(const std::string& error_file) {
  if (error_file.empty()) return;
  (void)::unlink(PeerFailurePath(error_file).c_str());
  (void)::unlink(error_file.c_str());
}

}  // namespace tandem::collectives
