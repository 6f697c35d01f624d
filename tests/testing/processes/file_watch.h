// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_TESTING_PROCESSES_FILE_WATCH_H_
#define TANDEM_TESTS_TESTING_PROCESSES_FILE_WATCH_H_

// Waits for changes of files that other processes write.

#include <poll.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "tests/testing/processes/processes.h"

namespace tandem::testing {

// Watches directories. Not thread-safe.
class FileWatch {
 public:
  // Watches the files in `directories`, which must exist, for creation, removal and changes.
  explicit FileWatch(const std::vector<std::string>& directories)
      : fd_(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK)) {
    for (const std::string& directory : directories) {
      TANDEM_CHECK_MSG(
          ::inotify_add_watch(fd_, directory.c_str(), IN_CREATE | IN_DELETE | IN_MODIFY | IN_MOVED_TO) >= 0,
          directory);
    }
  }
  ~FileWatch() { ::close(fd_); }
  FileWatch(const FileWatch&) = delete;
  FileWatch& operator=(const FileWatch&) = delete;

  // Waits until `holds` returns true. It is called now, whenever a file has changed, and when one of
  // `processes` has ended. Returns false if it does not hold by `deadline`.
  bool Await(const std::function<bool()>& holds, absl::Time deadline,
             const std::vector<pid_t>& processes = {}) {
    std::vector<pollfd> ready = {{fd_, POLLIN, 0}};
    for (const pid_t pid : processes) ready.push_back({OpenPidfd(pid), POLLIN, 0});
    const std::vector<pollfd> opened(ready.begin() + 1, ready.end());
    bool held = false;
    while (!(held = holds()) && absl::Now() < deadline) {
      if (::poll(ready.data(), ready.size(), MillisUntil(deadline)) <= 0) continue;
      for (size_t i = 1; i < ready.size(); ++i) {
        if (ready[i].revents != 0) ready[i].fd = -1;  // it stays readable; once is enough
      }
      char events[4096];
      while (::read(fd_, events, sizeof(events)) > 0) {
      }
    }
    for (const pollfd& process : opened) {
      if (process.fd >= 0) ::close(process.fd);
    }
    return held;
  }

 private:
  const int fd_;
};

}  // namespace tandem::testing

#endif  // TANDEM_TESTS_TESTING_PROCESSES_FILE_WATCH_H_
