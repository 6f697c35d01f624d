#ifndef TANDEM_BASE_IPC_DESCRIPTOR_H_
#define TANDEM_BASE_IPC_DESCRIPTOR_H_

#include <utility>

namespace tandem::ipc {

// Owns a file descriptor. Movable.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor();
  int get() const { return fd_; }
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

}  // namespace tandem::ipc

#endif  // TANDEM_BASE_IPC_DESCRIPTOR_H_
