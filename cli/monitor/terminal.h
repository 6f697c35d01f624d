// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLI_MONITOR_TERMINAL_H_
#define TANDEM_CLI_MONITOR_TERMINAL_H_

// Draws a text screen in place with ANSI escapes, and reads the keys that are pressed.

#include <termios.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/process/signal_pipe.h"

namespace tandem::cli {

enum class Key { kNone, kQuit, kLeft, kRight, kReverse, kOther };

// Returns the key that `bytes` begin with, and its length in bytes. Returns nullopt if `bytes` is an
// incomplete escape sequence.
std::optional<std::pair<Key, size_t>> ParseKey(absl::string_view bytes);

// Controls the terminal (alternate screen, no echo, no cursor) until it is destroyed. Requires that stdin and
// stdout are a terminal. At most one exists at a time. For use by one thread.
class Terminal {
 public:
  static absl::StatusOr<std::unique_ptr<Terminal>> TakeOver();
  ~Terminal();

  size_t rows() const;
  size_t columns() const;
  // Replaces the contents of the screen. Lines below its end are not shown.
  void Draw(const std::vector<std::string>& lines);
  // Blocks until a key is pressed, at most until `until` of MonotonicNow(), and returns the key; kNone if
  // none was pressed. SIGINT, SIGTERM and SIGHUP count as kQuit, and a change of the screen's size as kOther.
  // Ctrl-Z (SIGTSTP) restores the terminal and stops the process; when the process continues, the result is
  // kOther.
  Key WaitForKey(absl::Time until);

 private:
  Terminal(std::unique_ptr<SignalPipe> signals, const termios& before);
  void Enter();
  void Leave();

  const std::unique_ptr<SignalPipe> signals_;
  const termios before_;
  std::string input_;
};

}  // namespace tandem::cli

#endif  // TANDEM_CLI_MONITOR_TERMINAL_H_
