// SPDX-License-Identifier: Apache-2.0
#include "launcher/process/child_output.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status.h"

namespace tandem::launcher {

namespace {

absl::StatusOr<ipc::Descriptor> OpenForWriting(const std::string& path, bool append) {
  ipc::Descriptor file(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (append ? 0 : O_TRUNC), 0666));
  if (file.valid()) return file;
  return absl::ErrnoToStatus(
      errno, absl::StrCat("cannot write the log file '", path, "'; choose another --log-dir"));
}

}  // namespace

absl::Status ChildOutput::Open(const OutputFiles& files) {
  files_ = files;
  TANDEM_ASSIGN_OR_RETURN(log_, OpenForWriting(files.log, files.append));
  for (Console::Stream stream : {Console::kOut, Console::kErr}) {
    const std::string& path = files.streams[stream];
    if (path.empty()) continue;
    TANDEM_ASSIGN_OR_RETURN(stream_files_[stream], OpenForWriting(path, /*append=*/false));
  }
  return absl::OkStatus();
}

void ChildOutput::WriteTo(ipc::Descriptor* file, const std::string& path, absl::string_view bytes) {
  while (file->valid() && !bytes.empty()) {
    const ssize_t written = ::write(file->get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      console_->Say(absl::StrCat("cannot write ", path, " any more: ", std::strerror(errno)));
      file->Reset();
      return;
    }
    bytes.remove_prefix(static_cast<size_t>(written));
  }
}

void ChildOutput::Consume(Console::Stream stream, absl::string_view bytes) {
  WriteTo(&log_, files_.log, bytes);
  WriteTo(&stream_files_[stream], files_.streams[stream], bytes);
  if (raw(stream) && shown(stream)) console_->Raw(stream, bytes);
  std::string& partial = partial_[stream];
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    const absl::string_view chunk = bytes.substr(0, end);
    partial.append(chunk.data(), chunk.size());
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
  // Only the last text counts in a line that was overwritten with carriage returns.
  text = absl::StripSuffix(text, "\r");
  if (const size_t drawn = text.rfind('\r'); drawn != absl::string_view::npos) text = text.substr(drawn + 1);
  tail_.emplace_back(text);
  if (tail_.size() > kTailLines) tail_.pop_front();
  if (!raw(stream) && shown(stream)) console_->PrefixedLine(stream, name_, index_, text);
}

}  // namespace tandem::launcher
