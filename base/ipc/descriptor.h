// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BASE_IPC_DESCRIPTOR_H_
#define TANDEM_BASE_IPC_DESCRIPTOR_H_

#include <utility>

namespace tandem::ipc {

// Owns a file descriptor, or none (-1). Movable.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    const int fd = other.Release();
    Reset();
    fd_ = fd;
    return *this;
  }
  ~Descriptor() { Reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  // Closes the descriptor, if there is one.
  void Reset();
  // Returns the descriptor and passes its ownership to the caller.
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

}  // namespace tandem::ipc

#endif  // TANDEM_BASE_IPC_DESCRIPTOR_H_
