// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/processes/process_sockets.h"

#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "tests/testing/processes/processes.h"

namespace tandem::testing {
namespace {

struct TcpSocket {
  int local_port, remote_port;
  uint64_t inode;
};

int PortOf(absl::string_view address) {
  uint32_t port = 0;
  return absl::SimpleHexAtoi(address.substr(address.rfind(':') + 1), &port) ? static_cast<int>(port) : 0;
}

// The format is that of proc(5). A socket for both versions of IP is in the second file.
std::vector<TcpSocket> TcpSockets() {
  std::vector<TcpSocket> sockets;
  for (const char* const file : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    for (const std::string& line : Lines(ReadFile(file))) {
      const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
      uint64_t inode = 0;
      if (words.size() < 10 || !absl::SimpleAtoi(words[9], &inode)) continue;
      sockets.push_back({PortOf(words[1]), PortOf(words[2]), inode});
    }
  }
  return sockets;
}

}  // namespace

std::set<uint64_t> SocketsOf(pid_t pid) {
  std::set<uint64_t> inodes;
  std::error_code ended;
  for (std::filesystem::directory_iterator one(absl::StrCat("/proc/", pid, "/fd"), ended), end;
       !ended && one != end; one.increment(ended)) {
    std::error_code closed;
    const std::string target = std::filesystem::read_symlink(one->path(), closed).string();
    absl::string_view text = target;
    uint64_t inode = 0;
    if (absl::ConsumePrefix(&text, "socket:[") && absl::ConsumeSuffix(&text, "]") &&
        absl::SimpleAtoi(text, &inode)) {
      inodes.insert(inode);
    }
  }
  return inodes;
}

uint64_t SocketBetween(int local_port, int remote_port) {
  for (const TcpSocket& socket : TcpSockets()) {
    if (socket.local_port == local_port && socket.remote_port == remote_port) return socket.inode;
  }
  return 0;
}

}  // namespace tandem::testing
