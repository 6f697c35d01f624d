#ifndef TANDEM_LAUNCHER_PROCESS_CHILD_OUTPUT_H_
#define TANDEM_LAUNCHER_PROCESS_CHILD_OUTPUT_H_

// Where one process's output goes: into its log files, onto the console, and, the last lines, into memory.

#include <deque>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/ipc/descriptor.h"
#include "launcher/process/console.h"

namespace tandem::launcher {

struct OutputFiles {
  std::string log;                 // both streams, in the order of their lines
  bool append = false;             // to `log`: an earlier life of the process began it
  std::string streams[2];          // stdout and stderr by themselves; "": not kept apart
  bool console[2] = {true, true};  // whether stdout and stderr are shown
};

// Not thread-safe. `console` outlives it.
class ChildOutput {
 public:
  static constexpr size_t kTailLines = 10;
  static constexpr size_t kMaxLineBytes = 64 << 10;  // a longer line is cut in pieces

  // `index` picks the colour. `raw`: streams that are a terminal get the bytes as they come, without prefix.
  ChildOutput(Console* console, std::string name, int index, bool raw)
      : console_(console), name_(std::move(name)), index_(index), raw_(raw) {}

  // Creates the files, or empties them.
  absl::Status Open(const OutputFiles& files);
  const std::string& log_path() const { return files_.log; }
  void Rename(std::string name) { name_ = std::move(name); }

  void Consume(Console::Stream stream, absl::string_view bytes);
  // The stream has ended: an unfinished line is a line.
  void Finish(Console::Stream stream);
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
