// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLUSTER_MEMBERSHIP_BEAT_H_
#define TANDEM_CLUSTER_MEMBERSHIP_BEAT_H_

// The beat of a process that `tandem run` has started: a counter in memory that the process shares with its
// launcher. A thread of the process advances it, so the launcher sees that the process still runs, without
// the network, the job's store or Python. A counter that stands still means that no thread of the process
// runs: it was stopped (SIGSTOP), hangs in the kernel, or waits for memory from a disk. The launcher's rules
// are in launcher/silence_rules.h.
//
// The page is a memory file whose descriptor the started program inherits (TANDEM_BEAT_FD), also through a
// shell that starts it. The process that joins the job takes a POSIX record lock on the file. The kernel
// releases that lock when the process ends or executes another program, and a process that is forked does not
// have it. So the lock tells whether the counter is anybody's:
//
//   - count() is 0: no process has joined yet. The program still imports its modules, for example.
//   - Holder() is nullopt: the process that has joined is gone, and its parent (a shell) goes on.
//   - otherwise the counter is that of the process Holder().
//
// If several processes below one program join, the first one beats, and another one once that has ended.

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/ipc/memory_file.h"

namespace tandem::cluster {

inline constexpr char kBeatVariable[] = "TANDEM_BEAT_FD";

// Starts the beat of this process, for the rest of its life, if its launcher has asked for one; else does
// nothing. Called where a process joins its job, before it waits for anything. Later calls do nothing, and
// calls in a process that was forked after the first one do nothing. Thread-safe; does not block. A
// descriptor that is no page of this version of Tandem is left alone.
void StartBeat();

// The launcher's side: one page for each process that it starts. Thread-safe.
class BeatPage {
 public:
  // `period`: the time between two beats. Returns FailedPrecondition if the kernel refuses memory files.
  static absl::StatusOr<std::unique_ptr<BeatPage>> Create(absl::Duration period);

  // The descriptor that the process must inherit. This object closes it.
  int descriptor() const { return memory_->descriptor(); }
  // Returns the number of beats of all processes that have had the page.
  uint64_t count() const;
  // Returns the process that beats; nullopt if there is none. 0 if it cannot be named here, because it is in
  // another PID namespace.
  std::optional<pid_t> Holder() const;

 private:
  explicit BeatPage(std::unique_ptr<ipc::MemoryFile> memory) : memory_(std::move(memory)) {}

  const std::unique_ptr<ipc::MemoryFile> memory_;
};

}  // namespace tandem::cluster

#endif  // TANDEM_CLUSTER_MEMBERSHIP_BEAT_H_
