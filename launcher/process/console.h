// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_LAUNCHER_PROCESS_CONSOLE_H_
#define TANDEM_LAUNCHER_PROCESS_CONSOLE_H_

// The launcher's own stdout and stderr. The output of many processes is interleaved there line by line.

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace tandem::launcher {

// Buffers output to one descriptor (stdout or stderr). Writing never blocks, because a launcher blocked in
// write() could not stop its job: bytes that the reader has not taken yet stay in memory. After a write error
// everything is dropped. Not thread-safe.
class OutputSink {
 public:
  explicit OutputSink(int fd);
  bool is_terminal() const { return terminal_; }
  int fd() const { return fd_; }
  void Write(absl::string_view text);
  // Writes as much as possible without blocking.
  void Flush();
  // Bytes that are not written yet.
  size_t backlog_bytes() const { return pending_.size() - offset_; }

 private:
  const int fd_;
  const bool terminal_;
  bool broken_ = false;  // a write has failed: the reader is gone
  std::string pending_;
  size_t offset_ = 0;
};

// Writes processes' lines and the launcher's own messages to stdout and stderr. Never blocks, except Drain.
// Not thread-safe.
class Console {
 public:
  enum Stream { kOut = 0, kErr = 1 };

  Console();
  OutputSink& sink(Stream stream) { return stream == kOut ? out_ : err_; }

  // Writes "[name] text" and a newline. On a terminal the prefix has the colour that `index` picks.
  void PrefixedLine(Stream stream, absl::string_view name, int index, absl::string_view text);
  // Writes `bytes` unchanged, including carriage returns.
  void Raw(Stream stream, absl::string_view bytes);
  // Writes a message of the launcher itself to stderr: "tandem run: line".
  void Say(absl::string_view line);
  // Blocks until everything is written, for at most `seconds`.
  void Drain(int seconds);

 private:
  // Erases an unfinished line that Raw wrote (a progress line, for example), so that a whole line can follow.
  void ClearUnfinished();

  OutputSink out_, err_;
  bool unfinished_ = false;
};

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_PROCESS_CONSOLE_H_
