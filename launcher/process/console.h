#ifndef TANDEM_LAUNCHER_PROCESS_CONSOLE_H_
#define TANDEM_LAUNCHER_PROCESS_CONSOLE_H_

// The launcher's own stdout and stderr, on which the output of many processes is woven together line by line.

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace tandem::launcher {

// One of stdout and stderr. Writing never blocks: what the reader does not take yet is kept, since a launcher
// stuck in write() could not stop its job. Not thread-safe.
class OutputSink {
 public:
  explicit OutputSink(int fd);
  bool is_terminal() const { return terminal_; }
  int fd() const { return fd_; }
  void Write(absl::string_view text);
  // Writes as much as is taken without blocking.
  void Flush();
  size_t backlog_bytes() const { return pending_.size() - offset_; }

 private:
  const int fd_;
  const bool terminal_;
  bool broken_ = false;  // nobody reads any more
  std::string pending_;
  size_t offset_ = 0;
};

// Not thread-safe.
class Console {
 public:
  enum Stream { kOut = 0, kErr = 1 };

  Console();
  OutputSink& sink(Stream stream) { return stream == kOut ? out_ : err_; }

  // "[worker/1] text"; the prefix is coloured by `index` on a terminal.
  void PrefixedLine(Stream stream, absl::string_view name, int index, absl::string_view text);
  // Passed on as it is, carriage returns and all.
  void Raw(Stream stream, absl::string_view bytes);
  // A line of the launcher's own, on stderr.
  void Say(absl::string_view line);
  // Waits at most `seconds` until everything is written.
  void Drain(int seconds);

 private:
  // On a terminal, a progress line may stand unfinished: makes room for a line above it.
  void ClearUnfinished();

  OutputSink out_, err_;
  bool unfinished_ = false;
};

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_PROCESS_CONSOLE_H_
