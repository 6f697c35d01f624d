#ifndef TANDEM_TESTS_CLI_MONITOR_PSEUDO_TERMINAL_H_
#define TANDEM_TESTS_CLI_MONITOR_PSEUDO_TERMINAL_H_

// A program at a terminal of its own, and what a person would see there.

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace tandem::cli {

// What a terminal of this size shows: as much of ANSI's escapes as our programs use. Anything else is noted
// in `unknown`.
class ScreenModel {
 public:
  ScreenModel(size_t rows, size_t columns) { Resize(rows, columns); }
  // Blank; the cursor at home.
  void Resize(size_t rows, size_t columns);
  void Write(absl::string_view bytes);

  const std::vector<std::string>& lines() const { return lines_; }  // each of `columns` characters
  // Without spaces at line ends.
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

// Not thread-safe. The destructor kills the program.
class PseudoTerminal {
 public:
  // Starts `program args...`, whose controlling terminal it is.
  PseudoTerminal(const std::string& program, const std::vector<std::string>& args, size_t rows,
                 size_t columns);
  ~PseudoTerminal();
  PseudoTerminal(const PseudoTerminal&) = delete;
  PseudoTerminal& operator=(const PseudoTerminal&) = delete;

  // As somebody would at the keyboard; "\x03" is Ctrl-C.
  void Press(absl::string_view keys);
  void Resize(size_t rows, size_t columns);
  // Until the screen is such that `holds`; false when it is not by kTestTimeout, or the program has ended.
  bool AwaitScreen(const std::function<bool(const ScreenModel&)>& holds);
  // Waits for the end: the exit code, 128 + signal, or -1 after kTestTimeout.
  int Wait();
  // Until the program has been stopped by a signal; false if it ends instead.
  bool AwaitStop();
  void Continue();

  const ScreenModel& screen() const { return screen_; }
  // Whether the terminal echoes and hands out whole lines, as a shell wants it.
  bool IsCooked() const;

 private:
  bool ReadSome(absl::Time deadline);

  int master_ = -1;
  pid_t pid_ = -1;
  ScreenModel screen_;
};

}  // namespace tandem::cli

#endif  // TANDEM_TESTS_CLI_MONITOR_PSEUDO_TERMINAL_H_
