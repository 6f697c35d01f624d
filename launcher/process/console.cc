// SPDX-License-Identifier: Apache-2.0
#include "launcher/process/console.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"

namespace tandem::launcher {

OutputSink::OutputSink(int fd) : fd_(fd), terminal_(::isatty(fd) == 1) {}

void OutputSink::Write(absl::string_view text) {
  if (broken_) return;
  pending_.append(text.data(), text.size());
  Flush();
}

void OutputSink::Flush() {
  while (!broken_ && backlog_bytes() > 0) {
    // Not with O_NONBLOCK, because the other programs that have the terminal open would share it. A
    // descriptor that is writable takes PIPE_BUF bytes without blocking.
    pollfd ready = {fd_, POLLOUT, 0};
    if (::poll(&ready, 1, 0) <= 0) break;
    const ssize_t written =
        ::write(fd_, pending_.data() + offset_, std::min<size_t>(backlog_bytes(), PIPE_BUF));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EAGAIN) break;
    if (written < 0) {
      broken_ = true;
      break;
    }
    offset_ += static_cast<size_t>(written);
  }
  if (broken_ || backlog_bytes() == 0) {
    pending_.clear();
    offset_ = 0;
  } else if (offset_ > (size_t{1} << 16)) {
    pending_.erase(0, offset_);
    offset_ = 0;
  }
}

Console::Console() : out_(STDOUT_FILENO), err_(STDERR_FILENO) {}

void Console::ClearUnfinished() {
  if (!unfinished_) return;
  (out_.is_terminal() ? out_ : err_).Write("\r\x1b[K");
  unfinished_ = false;
}

void Console::PrefixedLine(Stream stream, absl::string_view name, int index, absl::string_view text) {
  static constexpr absl::string_view kColours[] = {"\x1b[36m", "\x1b[33m", "\x1b[32m",
                                                   "\x1b[35m", "\x1b[34m", "\x1b[31m"};
  OutputSink& to = sink(stream);
  ClearUnfinished();
  if (to.is_terminal()) {
    to.Write(absl::StrCat(kColours[static_cast<size_t>(index) % std::size(kColours)], "[", name, "]\x1b[0m ",
                          text, "\n"));
  } else {
    to.Write(absl::StrCat("[", name, "] ", text, "\n"));
  }
}

void Console::Raw(Stream stream, absl::string_view bytes) {
  if (bytes.empty()) return;
  sink(stream).Write(bytes);
  unfinished_ = bytes.back() != '\n';
}

void Console::Say(absl::string_view line) {
  ClearUnfinished();
  err_.Write(absl::StrCat("tandem run: ", line, "\n"));
}

void Console::Drain(int seconds) {
  const absl::Time deadline = MonotonicNow() + absl::Seconds(seconds);
  for (OutputSink* to : {&out_, &err_}) {
    while (to->Flush(), to->backlog_bytes() > 0 && MonotonicNow() < deadline) {
      pollfd ready = {to->fd(), POLLOUT, 0};
      ::poll(&ready, 1, static_cast<int>(absl::ToInt64Milliseconds(deadline - MonotonicNow()) + 1));
    }
  }
}

}  // namespace tandem::launcher
