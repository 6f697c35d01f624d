#ifndef TANDEM_CLI_MONITOR_TERMINAL_H_
#define TANDEM_CLI_MONITOR_TERMINAL_H_

// A text screen that is redrawn in place, and the keys pressed meanwhile; plain ANSI escapes.

#include <termios.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "launcher/process/signal_pipe.h"

namespace tandem::cli {

enum class Key { kNone, kQuit, kLeft, kRight, kReverse, kOther };

// The key that `bytes` begin with, and how many of them it is. Nothing when they are only the start of an
// escape sequence.
std::optional<std::pair<Key, size_t>> ParseKey(absl::string_view bytes);

// Takes the terminal over (alternate screen, no echo, no cursor) until it is destroyed. Needs stdin and
// stdout to be a terminal. One exists at a time; used by one thread.
class Terminal {
 public:
  static absl::StatusOr<std::unique_ptr<Terminal>> TakeOver();
  ~Terminal();

  size_t rows() const;
  size_t columns() const;
  // Replaces what is on the screen; lines beyond its end are not shown.
  void Draw(const std::vector<std::string>& lines);
  // Waits at most until `until`; kNone when nothing was pressed. SIGINT, SIGTERM and SIGHUP are kQuit, and a
  // change of size is kOther. Ctrl-Z (SIGTSTP) gives the terminal back and stops the process; when that goes
  // on, it is kOther.
  Key WaitForKey(absl::Time until);

 private:
  Terminal(std::unique_ptr<launcher::SignalPipe> signals, const termios& before);
  void Enter();
  void Leave();

  const std::unique_ptr<launcher::SignalPipe> signals_;
  const termios before_;
  std::string input_;
};

}  // namespace tandem::cli

#endif  // TANDEM_CLI_MONITOR_TERMINAL_H_
