// SPDX-License-Identifier: Apache-2.0
#include "tests/cli/commands/replay_ledger.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "tests/testing/processes/processes.h"

namespace tandem::testing {

int64_t LedgerNow() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

LedgerFile::LedgerFile(const std::string& path)
    : fd_(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644)) {
  TANDEM_CHECK_MSG(fd_ >= 0, path);
}

LedgerFile::~LedgerFile() { ::close(fd_); }

void LedgerFile::Write(const std::string& line) {
  TANDEM_CHECK(::write(fd_, line.data(), line.size()) == static_cast<ssize_t>(line.size()));
}

void LedgerFile::Line(char kind, uint64_t id) {
  Write(absl::StrCat(std::string(1, kind), " ", LedgerNow(), " ", id, "\n"));
}

void LedgerFile::Seen(int64_t begin, int64_t version, int64_t committed, const std::vector<uint64_t>& ids,
                      const std::vector<int64_t>& versions) {
  std::string line =
      absl::StrCat("s ", begin, " ", LedgerNow(), " ", version, " ", committed, " ", ids.size());
  for (size_t i = 0; i < ids.size(); ++i) absl::StrAppend(&line, " ", ids[i], " ", versions[i]);
  Write(line + "\n");
}

void Ledger::Read(const std::string& path) {
  std::string text = ReadFile(path);
  text.resize(text.rfind('\n') == std::string::npos ? 0 : text.rfind('\n') + 1);
  for (const std::string& line : Lines(text)) {
    std::istringstream in(line);
    char kind = 0;
    int64_t time = 0;
    uint64_t id = 0;
    in >> kind >> time;
    if (kind == 's') {
      LedgerSpan span = {.begin = time};
      int64_t version = 0, committed = 0;
      size_t count = 0;
      in >> span.end >> version >> committed >> count;
      for (size_t i = 0; i < count; ++i) {
        int64_t oldest = 0;
        in >> id >> oldest;
        items[id].seen.push_back(span);
        largest_lag = std::max(largest_lag, committed - oldest);
        largest_own_lag = std::max(largest_own_lag, version - oldest);
      }
    } else {
      in >> id;
      LedgerItem& item = items[id];
      if (kind == 'w') item.sent = time;
      if (kind == 'a') item.acknowledged = time;
      if (kind == 'r') item.refused = true;
    }
    if (in.fail()) mistakes.push_back(absl::StrCat(path, ": ", line));
  }
}

std::vector<uint64_t> Ledger::AcknowledgedBut(const std::set<uint64_t>& writers,
                                              const std::set<uint64_t>& found) const {
  std::vector<uint64_t> ids;
  for (const auto& [id, item] : items) {
    if (item.acknowledged != 0 && writers.contains(LedgerId::WriterOf(id)) && !found.contains(id)) {
      ids.push_back(id);
    }
  }
  return ids;
}

bool Ledger::MayBeLost(const LedgerItem& item) const {
  return std::any_of(kills.begin(), kills.end(), [&](const ServerKill& kill) {
    return item.sent < kill.when.end && item.acknowledged > kill.checkpoint;
  });
}

std::vector<std::string> Ledger::SeenWrongly() const {
  std::vector<std::string> wrong;
  for (const auto& [id, item] : items) {
    if (item.sent == 0) wrong.push_back(absl::StrCat("item ", id, " was never sent"));
    if (item.refused && !item.seen.empty())
      wrong.push_back(absl::StrCat("item ", id, " was refused and seen"));
    std::vector<LedgerSpan> seen = item.seen;
    std::sort(seen.begin(), seen.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
    for (size_t i = 1; i < seen.size(); ++i) {
      const bool explained = std::any_of(kills.begin(), kills.end(), [&](const ServerKill& kill) {
        return seen[i - 1].begin < kill.when.end && seen[i].end > kill.when.begin &&
               seen[i - 1].end > kill.checkpoint;
      });
      if (!explained) wrong.push_back(absl::StrCat("item ", id, " was seen twice"));
    }
  }
  return wrong;
}

}  // namespace tandem::testing
