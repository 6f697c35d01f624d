#ifndef TANDEM_CLI_LAUNCH_UNIQUE_FD_H_
#define TANDEM_CLI_LAUNCH_UNIQUE_FD_H_

#include <unistd.h>

#include <utility>

namespace tandem::cli {

// Owns a file descriptor.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  ~UniqueFd() { Reset(); }
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    Reset();
    fd_ = std::exchange(other.fd_, -1);
    return *this;
  }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void Reset() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

 private:
  int fd_ = -1;
};

}  // namespace tandem::cli

#endif  // TANDEM_CLI_LAUNCH_UNIQUE_FD_H_
