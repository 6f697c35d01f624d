#include "cli/launch/child_output.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace tandem::cli {

absl::Status ChildOutput::OpenLog(const std::string& path) {
  log_path_ = path;
  log_ = UniqueFd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666));
  if (log_.valid()) return absl::OkStatus();
  return absl::ErrnoToStatus(
      errno, absl::StrCat("cannot write the log file '", path, "'; choose another --log-dir"));
}

void ChildOutput::Consume(Console::Stream stream, absl::string_view bytes) {
  for (absl::string_view rest = bytes; log_.valid() && !rest.empty();) {
    const ssize_t written = ::write(log_.get(), rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      console_->Say(absl::StrCat("cannot write ", log_path_, " any more: ", std::strerror(errno)));
      log_.Reset();
      break;
    }
    rest.remove_prefix(static_cast<size_t>(written));
  }
  if (raw(stream)) console_->Raw(stream, bytes);
  std::string& partial = partial_[stream];
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    const absl::string_view piece = bytes.substr(0, end);
    partial.append(piece.data(), piece.size());
    if (end != absl::string_view::npos || partial.size() > kMaxLineBytes) {
      Line(stream, partial);
      partial.clear();
    }
    bytes.remove_prefix(end == absl::string_view::npos ? bytes.size() : end + 1);
  }
}

void ChildOutput::Finish(Console::Stream stream) {
  if (!partial_[stream].empty()) Line(stream, partial_[stream]);
  partial_[stream].clear();
}

void ChildOutput::Line(Console::Stream stream, absl::string_view text) {
  // Of a line that was drawn over with carriage returns, what stood there last.
  text = absl::StripSuffix(text, "\r");
  if (const size_t drawn = text.rfind('\r'); drawn != absl::string_view::npos) text = text.substr(drawn + 1);
  tail_.emplace_back(text);
  if (tail_.size() > kTailLines) tail_.pop_front();
  if (!raw(stream)) console_->PrefixedLine(stream, name_, index_, text);
}

}  // namespace tandem::cli
