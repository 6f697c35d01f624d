// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_LAUNCHER_HOST_SOCKET_DIRECTORY_H_
#define TANDEM_LAUNCHER_HOST_SOCKET_DIRECTORY_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/ipc/descriptor.h"

namespace tandem::launcher {

// The directory of the unix sockets of one launcher's processes. Only this user can enter it (mode 0700), so
// no other user of the machine can connect. It has a short path, because that of a socket has at most 107
// bytes.
class SocketDirectory {
 public:
  // Creates a new directory below XDG_RUNTIME_DIR, else below /tmp or /dev/shm. Removes those whose launchers
  // were killed. Unavailable, with the reason of each, if there is none in which it can be created.
  static absl::StatusOr<std::unique_ptr<SocketDirectory>> Make();
  // Removes the directory with the sockets in it.
  ~SocketDirectory();
  SocketDirectory(const SocketDirectory&) = delete;
  SocketDirectory& operator=(const SocketDirectory&) = delete;

  const std::string& path() const { return path_; }
  // Returns the address of the socket `name`: "unix:<path>/<name>".
  std::string Address(absl::string_view name) const;

 private:
  SocketDirectory(std::string path, ipc::Descriptor lock) : path_(std::move(path)), lock_(std::move(lock)) {}
  const std::string path_;
  const ipc::Descriptor lock_;  // of the directory: the kernel unlocks it when the launcher ends
};

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_HOST_SOCKET_DIRECTORY_H_
