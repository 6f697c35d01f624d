// SPDX-License-Identifier: Apache-2.0
#include "tests/cli/monitor/pseudo_terminal.h"

#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <future>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "tests/testing/processes/processes.h"

namespace tandem::cli {

void ScreenModel::Resize(size_t rows, size_t columns) {
  columns_ = columns;
  lines_.assign(rows, std::string(columns, ' '));
  row_ = column_ = 0;
}

void ScreenModel::Put(char c) {
  if (column_ == columns_ && wraps_) {
    column_ = 0;
    row_ = std::min(row_ + 1, lines_.size() - 1);
  }
  lines_[row_][std::min(column_, columns_ - 1)] = c;
  column_ = std::min(column_ + 1, columns_);
}

void ScreenModel::Escape(absl::string_view sequence) {
  // After a full line the cursor is on its last character, so erasing from the cursor erases that character.
  const size_t at = std::min(column_, columns_ - 1);
  if (sequence == "[H") {
    row_ = column_ = 0;
  } else if (sequence == "[K") {
    std::fill(lines_[row_].begin() + at, lines_[row_].end(), ' ');
  } else if (sequence == "[2K") {
    lines_[row_].assign(columns_, ' ');
  } else if (sequence == "[J") {
    std::fill(lines_[row_].begin() + at, lines_[row_].end(), ' ');
    for (size_t row = row_ + 1; row < lines_.size(); ++row) lines_[row].assign(columns_, ' ');
  } else if (sequence == "[?1049h" || sequence == "[?1049l") {
    alternate_ = sequence.back() == 'h';
    Resize(lines_.size(), columns_);
  } else if (sequence == "[?25h" || sequence == "[?25l") {
    cursor_shown_ = sequence.back() == 'h';
  } else if (sequence == "[?7h" || sequence == "[?7l") {
    wraps_ = sequence.back() == 'h';
  } else if (sequence.back() != 'm') {  // colours
    absl::StrAppend(&unknown_, sequence, " ");
  }
}

void ScreenModel::Write(absl::string_view bytes) {
  for (const char c : bytes) {
    if (!pending_.empty()) {
      pending_ += c;
      if (pending_.size() > 2 && c >= '@') {
        Escape(absl::string_view(pending_).substr(1));
        pending_.clear();
      }
    } else if (c == '\x1b') {
      pending_ = c;
    } else if (c == '\r') {
      column_ = 0;
    } else if (c == '\n') {
      if (row_ + 1 < lines_.size()) {
        ++row_;
      } else {
        lines_.erase(lines_.begin());
        lines_.emplace_back(columns_, ' ');
      }
    } else if (static_cast<unsigned char>(c) < ' ') {
      absl::StrAppend(&unknown_, static_cast<int>(c), " ");
    } else {
      Put(c);
    }
  }
}

std::string ScreenModel::text() const {
  std::string text;
  for (const std::string& line : lines_)
    absl::StrAppend(&text, absl::StripTrailingAsciiWhitespace(line), "\n");
  return text;
}

PseudoTerminal::PseudoTerminal(const std::string& program, const std::vector<std::string>& args, size_t rows,
                               size_t columns)
    : screen_(rows, columns) {
  std::vector<std::string> words = {program};
  words.insert(words.end(), args.begin(), args.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const winsize size{.ws_row = static_cast<unsigned short>(rows),
                     .ws_col = static_cast<unsigned short>(columns),
                     .ws_xpixel = 0,
                     .ws_ypixel = 0};
  pid_ = ::forkpty(&master_, nullptr, nullptr, &size);
  TANDEM_CHECK(pid_ >= 0);
  if (pid_ == 0) {
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
}

PseudoTerminal::~PseudoTerminal() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  ::close(master_);
}

void PseudoTerminal::Press(absl::string_view keys) {
  TANDEM_CHECK(::write(master_, keys.data(), keys.size()) == static_cast<ssize_t>(keys.size()));
}

void PseudoTerminal::Resize(size_t rows, size_t columns) {
  screen_.Resize(rows, columns);
  winsize size{};
  size.ws_row = static_cast<unsigned short>(rows);
  size.ws_col = static_cast<unsigned short>(columns);
  TANDEM_CHECK(::ioctl(master_, TIOCSWINSZ, &size) == 0);
}

bool PseudoTerminal::ReadSome(absl::Time deadline) {
  pollfd ready = {master_, POLLIN, 0};
  if (::poll(&ready, 1, testing::MillisUntil(deadline)) <= 0) return absl::Now() < deadline;
  char buffer[65536];
  const ssize_t size = ::read(master_, buffer, sizeof(buffer));
  if (size <= 0) return false;  // nobody has the terminal open any more
  screen_.Write(absl::string_view(buffer, static_cast<size_t>(size)));
  return true;
}

bool PseudoTerminal::AwaitScreen(const std::function<bool(const ScreenModel&)>& holds) {
  const absl::Time deadline = absl::Now() + testing::kTestTimeout;
  do {
    if (holds(screen_)) return true;
  } while (ReadSome(deadline));
  return holds(screen_);
}

int PseudoTerminal::Wait() {
  const absl::Time deadline = absl::Now() + testing::kTestTimeout;
  while (ReadSome(deadline)) {
  }
  if (!testing::AwaitProcessEnd(pid_, deadline)) return -1;
  int status = 0;
  ::waitpid(pid_, &status, 0);
  pid_ = -1;
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

bool PseudoTerminal::AwaitStop() {
  std::future<bool> stopped = std::async(std::launch::async, [this] {
    siginfo_t info{};
    return ::waitid(P_PID, static_cast<id_t>(pid_), &info, WSTOPPED | WEXITED | WNOWAIT) == 0 &&
           info.si_code == CLD_STOPPED;
  });
  if (stopped.wait_for(absl::ToChronoSeconds(testing::kTestTimeout)) == std::future_status::timeout) {
    ::kill(pid_, SIGKILL);  // an end, too, is waited for
  }
  return stopped.get();
}

void PseudoTerminal::Continue() { ::kill(pid_, SIGCONT); }

bool PseudoTerminal::IsCooked() const {
  termios state{};
  return ::tcgetattr(master_, &state) == 0 && (state.c_lflag & ICANON) != 0 && (state.c_lflag & ECHO) != 0;
}

}  // namespace tandem::cli
