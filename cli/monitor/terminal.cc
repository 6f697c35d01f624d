// SPDX-License-Identifier: Apache-2.0
#include "cli/monitor/terminal.h"

#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"

namespace tandem::cli {
namespace {

// Selects the alternate screen, hides the cursor, and cuts off long lines instead of wrapping them.
constexpr absl::string_view kEnter = "\x1b[?1049h\x1b[?25l\x1b[?7l";
constexpr absl::string_view kLeave = "\x1b[?7h\x1b[?25h\x1b[?1049l";

void WriteAll(absl::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;  // the terminal is gone
    text.remove_prefix(static_cast<size_t>(written));
  }
}

winsize Size() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) size = {.ws_row = 24, .ws_col = 80};
  return size;
}

}  // namespace

std::optional<std::pair<Key, size_t>> ParseKey(absl::string_view bytes) {
  if (bytes.empty()) return std::nullopt;
  if (bytes[0] == '\x1b') {
    if (bytes.size() == 1) return std::nullopt;
    if (bytes[1] != '[' && bytes[1] != 'O') return std::make_pair(Key::kOther, size_t{1});
    if (bytes.size() == 2) return std::nullopt;
    if (bytes[2] == 'C') return std::make_pair(Key::kRight, size_t{3});
    if (bytes[2] == 'D') return std::make_pair(Key::kLeft, size_t{3});
    return std::make_pair(Key::kOther, size_t{3});
  }
  switch (bytes[0]) {
    case 'q':
    case 'Q':
    case '\x03':
    case '\x04':
      return std::make_pair(Key::kQuit, size_t{1});
    case '<':
    case 'h':
      return std::make_pair(Key::kLeft, size_t{1});
    case '>':
    case 'l':
      return std::make_pair(Key::kRight, size_t{1});
    case 'r':
      return std::make_pair(Key::kReverse, size_t{1});
    default:
      return std::make_pair(Key::kOther, size_t{1});
  }
}

absl::StatusOr<std::unique_ptr<Terminal>> Terminal::TakeOver() {
  termios before;
  if (::tcgetattr(STDIN_FILENO, &before) != 0) {
    return absl::FailedPreconditionError("standard input is no terminal");
  }
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<SignalPipe> signals,
                          SignalPipe::Install({SIGINT, SIGTERM, SIGHUP, SIGTSTP, SIGWINCH}));
  return std::unique_ptr<Terminal>(new Terminal(std::move(signals), before));
}

Terminal::Terminal(std::unique_ptr<SignalPipe> signals, const termios& before)
    : signals_(std::move(signals)), before_(before) {
  Enter();
}

Terminal::~Terminal() { Leave(); }

void Terminal::Enter() {
  termios raw = before_;
  raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
  raw.c_cc[VMIN] = 0;
  raw.c_cc[VTIME] = 0;
  ::tcsetattr(STDIN_FILENO, TCSANOW, &raw);
  WriteAll(kEnter);
}

void Terminal::Leave() {
  WriteAll(kLeave);
  ::tcsetattr(STDIN_FILENO, TCSANOW, &before_);
}

size_t Terminal::rows() const { return Size().ws_row; }
size_t Terminal::columns() const { return Size().ws_col; }

void Terminal::Draw(const std::vector<std::string>& lines) {
  std::string screen = "\x1b[H";
  const size_t shown = std::min(lines.size(), rows());
  // Each line is erased before it is written, because after a full line the cursor is on its last character.
  for (size_t i = 0; i < shown; ++i) absl::StrAppend(&screen, i == 0 ? "" : "\r\n", "\x1b[2K", lines[i]);
  if (shown < rows()) absl::StrAppend(&screen, "\r\n\x1b[J");
  WriteAll(screen);
}

Key Terminal::WaitForKey(absl::Time until) {
  while (true) {
    if (const auto key = ParseKey(input_); key.has_value()) {
      input_.erase(0, key->second);
      return key->first;
    }
    const int64_t left = std::max<int64_t>(0, absl::ToInt64Milliseconds(until - MonotonicNow()));
    pollfd fds[] = {{signals_->fd(), POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}};
    const int ready = ::poll(fds, 2, static_cast<int>(std::min<int64_t>(left, 1 << 30)));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) {
      input_.clear();  // a lone escape is not a key that is handled
      return Key::kNone;
    }
    if (fds[0].revents != 0) {
      Key key = Key::kOther;
      while (const std::optional<ReceivedSignal> signal = signals_->Next()) {
        if (signal->number == SIGTSTP) {
          Leave();
          ::raise(SIGSTOP);
          Enter();  // SIGCONT has come
        } else if (signal->number != SIGWINCH) {
          key = Key::kQuit;
        }
      }
      return key;
    }
    char buffer[64];
    const ssize_t size = ::read(STDIN_FILENO, buffer, sizeof(buffer));
    if (size <= 0) return Key::kQuit;  // the terminal is gone
    input_.append(buffer, static_cast<size_t>(size));
  }
}

}  // namespace tandem::cli
