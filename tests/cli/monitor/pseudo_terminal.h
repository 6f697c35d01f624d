// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_CLI_MONITOR_PSEUDO_TERMINAL_H_
#define TANDEM_TESTS_CLI_MONITOR_PSEUDO_TERMINAL_H_

// Runs a program in a pseudo terminal and emulates the screen that a user would see.

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace tandem::cli {

// Emulates a terminal of a given size. It knows the ANSI escapes that Tandem's programs use; others are
// recorded in `unknown`.
class ScreenModel {
 public:
  ScreenModel(size_t rows, size_t columns) { Resize(rows, columns); }
  // Constructs a blank screen with the cursor in the upper left corner.
  void Resize(size_t rows, size_t columns);
  void Write(absl::string_view bytes);

  const std::vector<std::string>& lines() const { return lines_; }  // each of `columns` characters
  // Returns the lines without spaces at their ends.
  std::string text() const;
  bool alternate() const { return alternate_; }
  bool cursor_shown() const { return cursor_shown_; }
  const std::string& unknown() const { return unknown_; }

 private:
  void Escape(absl::string_view sequence);
  void Put(char c);

  size_t columns_ = 0, row_ = 0, column_ = 0;
  std::vector<std::string> lines_;
  std::string pending_;  // the start of an escape
  bool alternate_ = false, cursor_shown_ = true, wraps_ = true;
  std::string unknown_;
};

// A program in a pseudo terminal. Not thread-safe. The destructor kills the program.
class PseudoTerminal {
 public:
  // Starts `program args...` with this as its controlling terminal.
  PseudoTerminal(const std::string& program, const std::vector<std::string>& args, size_t rows,
                 size_t columns);
  ~PseudoTerminal();
  PseudoTerminal(const PseudoTerminal&) = delete;
  PseudoTerminal& operator=(const PseudoTerminal&) = delete;

  // Types `keys` as at the keyboard; "\x03" is Ctrl-C.
  void Press(absl::string_view keys);
  void Resize(size_t rows, size_t columns);
  // Blocks until `holds` returns true for the screen. Returns false after kTestTimeout or if the program has
  // ended.
  bool AwaitScreen(const std::function<bool(const ScreenModel&)>& holds);
  // Blocks until the program has ended. Returns its exit code, 128 + signal, or -1 after kTestTimeout.
  int Wait();
  // Blocks until a signal has stopped the program. Returns false if it ends instead.
  bool AwaitStop();
  void Continue();

  const ScreenModel& screen() const { return screen_; }
  // Returns whether the terminal echoes and delivers whole lines, as a shell expects.
  bool IsCooked() const;

 private:
  bool ReadSome(absl::Time deadline);

  int master_ = -1;
  pid_t pid_ = -1;
  ScreenModel screen_;
};

}  // namespace tandem::cli

#endif  // TANDEM_TESTS_CLI_MONITOR_PSEUDO_TERMINAL_H_
