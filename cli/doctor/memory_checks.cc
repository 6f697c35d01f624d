// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/cgroup.h"
#include "cli/doctor/checks.h"

namespace tandem::cli {
namespace {

constexpr char kMemory[] = "memory";
constexpr uint64_t kMiB = 1 << 20;

// Returns the value of a line of /proc/meminfo, in bytes.
std::optional<uint64_t> MemInfo(const launcher::Machine& machine, absl::string_view name) {
  const absl::StatusOr<std::string> text = machine.ReadFile("/proc/meminfo");
  if (!text.ok()) return std::nullopt;
  for (const absl::string_view line : absl::StrSplit(*text, '\n')) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    uint64_t kib = 0;
    if (words.size() >= 2 && words[0] == absl::StrCat(name, ":") && absl::SimpleAtoi(words[1], &kib)) {
      return kib * 1024;
    }
  }
  return std::nullopt;
}

// Returns the word in brackets of a text such as "always [madvise] never".
std::string Chosen(const std::string& text) {
  const size_t from = text.find('['), to = text.find(']');
  return from == std::string::npos || to == std::string::npos || to < from
             ? text
             : text.substr(from + 1, to - from - 1);
}

}  // namespace

Checks CheckMemory(const launcher::Machine& machine) {
  Checks checks;
  const std::optional<uint64_t> total = MemInfo(machine, "MemTotal"),
                                available = MemInfo(machine, "MemAvailable");
  if (total.has_value() && available.has_value()) {
    const bool low = *available < 512 * kMiB;
    checks.push_back({low ? Level::kWarn : Level::kOk, kMemory, "memory",
                      absl::StrCat(BytesText(*available), " of ", BytesText(*total), " available"),
                      low ? "a job may be killed for want of memory: see what else runs here" : ""});
  }
  if (const std::optional<uint64_t> limit =
          CgroupMemoryLimit([&machine](const std::string& path) { return machine.ReadFile(path); });
      limit.has_value()) {
    const bool low = *limit < 1024 * kMiB;
    checks.push_back({low ? Level::kWarn : Level::kOk, kMemory, "cgroup limit", BytesText(*limit),
                      low ? "what ranks share counts as well: raise it (docker run --memory, Kubernetes "
                            "resources.limits.memory)"
                          : ""});
  } else {
    checks.push_back({Level::kOk, kMemory, "cgroup limit", "none"});
  }

  const absl::Status memfd = machine.CanMapMemory();
  checks.push_back(memfd.ok() ? Check{Level::kOk, kMemory, "memfd", "memory without a name can be shared"}
                              : Check{Level::kFail, kMemory, "memfd", std::string(memfd.message()),
                                      "the shm backend cannot work: allow memfd_create (seccomp), or use "
                                      "backend tcp"});
  const absl::StatusOr<launcher::Machine::FileSystem> shm = machine.StatFileSystem("/dev/shm");
  if (!shm.ok()) {
    checks.push_back({Level::kWarn, kMemory, "/dev/shm", std::string(shm.status().message()),
                      "Tandem does not need it; Open MPI and NCCL do: mount -t tmpfs tmpfs /dev/shm"});
  } else {
    const bool small = shm->free_bytes < 256 * kMiB;
    checks.push_back({small ? Level::kWarn : Level::kOk, kMemory, "/dev/shm",
                      absl::StrCat(BytesText(shm->free_bytes), " of ", BytesText(shm->total_bytes), " free"),
                      small
                          ? "enough for Tandem, which shares memory without it; Open MPI and NCCL want more "
                            "(docker run --shm-size=1g)"
                          : ""});
  }

  const absl::StatusOr<std::string> huge = machine.ReadFile("/sys/kernel/mm/transparent_hugepage/enabled");
  if (huge.ok()) {
    const std::string chosen = Chosen(*huge);
    checks.push_back({chosen == "never" ? Level::kWarn : Level::kOk, kMemory, "huge pages",
                      absl::StrCat("transparent huge pages: ", chosen),
                      chosen == "never"
                          ? "random rows of large tables are read a third slower: echo madvise > "
                            "/sys/kernel/mm/transparent_hugepage/enabled"
                          : ""});
  } else {
    checks.push_back({Level::kOk, kMemory, "huge pages", "not known: not readable here"});
  }
  return checks;
}

}  // namespace tandem::cli
