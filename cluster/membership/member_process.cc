// SPDX-License-Identifier: Apache-2.0
#include "cluster/membership/member_process.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "base/utf8.h"
#include "tandem/v1/store.pb.h"

namespace tandem::cluster {
namespace {

constexpr size_t kMaxProcessNameBytes = 256;

struct Stat {
  char state = '?';
  uint64_t started = 0;
};

// Reads /proc/PID/stat; nullopt if it is not there, or may not be read.
std::optional<Stat> ReadStat(int64_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  // The program's name is in parentheses and may contain any character.
  const size_t name_end = text.rfind(')');
  if (name_end == text.npos) return std::nullopt;
  std::istringstream fields(text.substr(name_end + 1));
  Stat stat;
  fields >> stat.state;
  std::string skipped;
  constexpr int kFieldsBetween = 18;  // state is field 3, the start time field 22
  for (int i = 0; i < kFieldsBetween; ++i) fields >> skipped;
  if (!(fields >> stat.started)) return std::nullopt;
  return stat;
}

}  // namespace

MemberProcess MemberProcess::Self() {
  MemberProcess self;
  char host[kMaxProcessNameBytes] = "";
  ::gethostname(host, sizeof(host) - 1);
  self.host = ValidUtf8(host);
  std::ifstream("/proc/sys/kernel/random/boot_id") >> self.boot_id;
  struct stat space {};
  if (::stat("/proc/self/ns/pid", &space) == 0) self.pid_namespace = space.st_ino;
  self.pid = ::getpid();
  if (const std::optional<Stat> stat = ReadStat(self.pid)) self.started = stat->started;
  return self;
}

MemberProcess MemberProcess::FromProto(const v1::MemberProcess& proto) {
  return {.host = proto.host().substr(0, kMaxProcessNameBytes),
          .boot_id = proto.boot_id().substr(0, kMaxProcessNameBytes),
          .pid_namespace = proto.pid_namespace(),
          .pid = proto.pid(),
          .started = proto.started()};
}

v1::MemberProcess MemberProcess::ToProto() const {
  v1::MemberProcess proto;
  proto.set_host(ValidUtf8(host));  // FromProto may have cut a character
  proto.set_boot_id(ValidUtf8(boot_id));
  proto.set_pid_namespace(pid_namespace);
  proto.set_pid(pid);
  proto.set_started(started);
  return proto;
}

std::string MemberProcess::ToString() const { return absl::StrCat("pid ", pid, " on ", host); }

ProcessState LookFor(const MemberProcess& process) {
  const MemberProcess self = MemberProcess::Self();
  if (process.boot_id.empty() || process.boot_id != self.boot_id || process.pid_namespace == 0 ||
      process.pid_namespace != self.pid_namespace || process.pid <= 0 || process.started == 0) {
    return ProcessState::kElsewhere;
  }
  if (const std::optional<Stat> stat = ReadStat(process.pid)) {
    const bool ended = stat->state == 'Z' || stat->state == 'X';  // its parent has not waited for it
    return ended || stat->started != process.started ? ProcessState::kGone : ProcessState::kLives;
  }
  // /proc may hide the processes of other users (hidepid).
  const bool gone = ::kill(static_cast<pid_t>(process.pid), 0) != 0 && errno == ESRCH;
  return gone ? ProcessState::kGone : ProcessState::kLives;
}

}  // namespace tandem::cluster
