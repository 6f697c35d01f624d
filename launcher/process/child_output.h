// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_LAUNCHER_PROCESS_CHILD_OUTPUT_H_
#define TANDEM_LAUNCHER_PROCESS_CHILD_OUTPUT_H_

// Distributes the output of one process: to its log files, to the console, and the last lines to memory.

#include <deque>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/ipc/descriptor.h"
#include "launcher/process/console.h"

namespace tandem::launcher {

// The files and streams to which one process's output goes.
struct OutputFiles {
  std::string log;                 // path; gets both streams, in the order in which they are read
  bool append = false;             // whether to append to `log`, which an earlier start of the process wrote
  std::string streams[2];          // paths for stdout and stderr alone; "": no such file
  bool console[2] = {true, true};  // whether stdout and stderr are shown on the console
};

// Distributes the output of one process. Not thread-safe. `console` is borrowed and must outlive it.
class ChildOutput {
 public:
  static constexpr size_t kTailLines = 10;
  static constexpr size_t kMaxLineBytes = 64 << 10;  // a longer line is cut into several

  // `name` is the prefix of shown lines and `index` picks its colour. With `raw`, console streams that are a
  // terminal get the bytes as they come, without a prefix.
  ChildOutput(Console* console, std::string name, int index, bool raw)
      : console_(console), name_(std::move(name)), index_(index), raw_(raw) {}

  // Creates the files; empties existing ones, except a log to append to. Call it first and once. Errors name
  // the file.
  absl::Status Open(const OutputFiles& files);
  const std::string& log_path() const { return files_.log; }
  // Changes the prefix of the lines that follow.
  void Rename(std::string name) { name_ = std::move(name); }

  // Distributes `bytes`, which the process wrote to `stream`. A file that can no longer be written gets
  // nothing more, after one message on the console.
  void Consume(Console::Stream stream, absl::string_view bytes);
  // Call when the stream has ended: text after the last newline becomes a line.
  void Finish(Console::Stream stream);
  // The last lines of both streams, at most kTailLines, the oldest first.
  const std::deque<std::string>& tail() const { return tail_; }

 private:
  void Line(Console::Stream stream, absl::string_view text);
  void WriteTo(ipc::Descriptor* file, const std::string& path, absl::string_view bytes);
  bool shown(Console::Stream stream) const { return files_.console[stream]; }
  bool raw(Console::Stream stream) { return raw_ && console_->sink(stream).is_terminal(); }

  Console* const console_;
  std::string name_;
  const int index_;
  const bool raw_;
  OutputFiles files_;
  ipc::Descriptor log_, stream_files_[2];
  std::string partial_[2];  // per stream, the line not yet ended
  std::deque<std::string> tail_;
};

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_PROCESS_CHILD_OUTPUT_H_
