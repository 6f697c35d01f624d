// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_CLI_COMMANDS_REPLAY_LEDGER_H_
#define TANDEM_TESTS_CLI_COMMANDS_REPLAY_LEDGER_H_

// The ledger of a replay test with processes that are killed: what writers have sent and what servers have
// acknowledged, what learners have got, and when processes were killed.

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace tandem::testing {

// Identifies an item of the test. Less than 2^52, so that a priority can carry it.
struct LedgerId {
  static uint64_t Make(uint64_t writer, uint64_t life, uint64_t number) {
    return writer << 48 | life << 32 | number;
  }
  static uint64_t WriterOf(uint64_t id) { return id >> 48; }
  static uint64_t LifeOf(uint64_t id) { return id >> 32 & 0xffff; }
};

// Returns the time in nanoseconds. All processes of a machine have the same clock.
int64_t LedgerNow();

// A file of one process. A line is one write(), so that a process that is killed leaves whole lines.
class LedgerFile {
 public:
  explicit LedgerFile(const std::string& path);
  ~LedgerFile();
  // A writer is about to send an item; the server has acknowledged it; the table has refused it.
  void Sent(uint64_t id) { Line('w', id); }
  void Acknowledged(uint64_t id) { Line('a', id); }
  void Refused(uint64_t id) { Line('r', id); }
  // A learner has got items by a call that began at `begin`. `versions` are the oldest versions of the items.
  // `version` is what this learner had committed last, `committed` what the answer said.
  void Seen(int64_t begin, int64_t version, int64_t committed, const std::vector<uint64_t>& ids,
            const std::vector<int64_t>& versions);

 private:
  void Line(char kind, uint64_t id);
  void Write(const std::string& line);
  const int fd_;
};

// A span of time in which something happened.
struct LedgerSpan {
  int64_t begin = 0, end = 0;
};

// An item as the processes have seen it.
struct LedgerItem {
  int64_t sent = 0;
  int64_t acknowledged = 0;  // 0: it was not
  bool refused = false;
  std::vector<LedgerSpan> seen;
};

// A kill of the server. Everything up to the beginning of the last checkpoint that was complete has survived.
struct ServerKill {
  LedgerSpan when;
  int64_t checkpoint = 0;
};

struct Ledger {
  std::map<uint64_t, LedgerItem> items;
  int64_t largest_lag = 0;            // by what the answers said
  int64_t largest_own_lag = 0;        // by what the learner had committed
  std::vector<ServerKill> kills;      // in their order
  std::vector<std::string> mistakes;  // in the files

  // Adds the lines of a file. An incomplete last line is left out.
  void Read(const std::string& path);

  // Returns the items of the writers, with the property. Each returns ids.
  std::vector<uint64_t> AcknowledgedBut(const std::set<uint64_t>& writers,
                                        const std::set<uint64_t>& found) const;
  // Returns true if a kill can have lost the item with the server: it was acknowledged after the checkpoint
  // began, and sent before the kill.
  bool MayBeLost(const LedgerItem& item) const;
  // Returns what was seen twice, or was refused and seen, although no kill explains it: the server of the
  // second time had gone on from a checkpoint that was older than the first time.
  std::vector<std::string> SeenWrongly() const;
};

}  // namespace tandem::testing

#endif  // TANDEM_TESTS_CLI_COMMANDS_REPLAY_LEDGER_H_
