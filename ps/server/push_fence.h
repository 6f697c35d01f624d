// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_SERVER_PUSH_FENCE_H_
#define TANDEM_PS_SERVER_PUSH_FENCE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <vector>

#include "absl/status/statusor.h"
#include "tandem/v1/checkpoint.pb.h"

namespace tandem::v1 {
class PushFenceState;
}

namespace tandem::ps {

namespace v1 = ::tandem::v1;

// Records which pushes of each worker this server has taken, so that every push is applied exactly once. A
// push is identified by (worker, epoch, sequence). Sequences count a worker's pushes to this server from 1.
// They may arrive out of order, because several pushes are in flight. Not thread-safe.
class PushFence {
 public:
  // Largest distance between the sequences of two pushes of one worker that are in flight together. A push
  // from before the window is refused: its worker has given up on it, or has restarted under its old epoch.
  static constexpr uint64_t kWindow = 256;
  static constexpr size_t kKnownTokens = 16;

  enum class Verdict { kNew, kDuplicate };

  // Returns whether the push is new or a duplicate of one that was taken. Changes nothing.
  // FailedPrecondition: the epoch is older than the worker's newest, or the sequence cannot be a retry; the
  // message says what was seen and what a restarted worker must do. InvalidArgument: sequence 0.
  absl::StatusOr<Verdict> Check(uint32_t worker, uint64_t epoch, uint64_t sequence) const;
  // Records a push for which Check returned kNew. A higher epoch replaces the sequences of the lower one.
  void Commit(uint32_t worker, uint64_t epoch, uint64_t sequence);

  // Starts an epoch of the worker: the smallest one that is at least `at_least` and larger than every epoch
  // of the worker so far, including those from before a Restore. Pushes of earlier epochs are refused from
  // now on. FailedPrecondition: there is no larger epoch.
  //
  // A call with the token of one of the worker's last kKnownTokens calls returns the epoch of that call and
  // changes nothing: it is a repetition, which may even arrive after later calls. Token 0 is none.
  absl::StatusOr<uint64_t> StartEpoch(uint32_t worker, uint64_t at_least, uint64_t token = 0);

  // Returns the state for a checkpoint.
  std::vector<v1::WorkerFence> Save() const;
  // Replaces the state with the one from a checkpoint. The newest epoch of each worker is remembered: pushes
  // of earlier epochs are refused, also if the checkpoint does not know the worker, and StartEpoch exceeds
  // it.
  void Restore(const std::vector<v1::WorkerFence>& fences);
  // Replaces the state with the epochs of a checkpoint of another number of servers, whose sequences mean
  // nothing here. From now on each worker must push with an epoch above its saved one.
  void RestoreEpochsOnly(const std::vector<v1::WorkerFence>& fences);

  // Durable servers: save and restore everything, as if the server had lived on. In contrast to Restore, a
  // repeated push of sequence 1 is still known as a duplicate.
  v1::PushFenceState SaveState() const;
  void RestoreState(const v1::PushFenceState& state);
  // Repeats a call of StartEpoch that returned `epoch`. Does nothing if the worker has pushed with that epoch
  // or a later one.
  void RepeatStart(uint32_t worker, uint64_t epoch, uint64_t token);

 private:
  struct Fence {
    uint64_t epoch = 0;
    uint64_t low = 0;          // every sequence <= low is taken, or refused because of the window
    std::set<uint64_t> above;  // the taken sequences > low + 1
    bool restored = false;     // comes from a checkpoint, and no push has arrived since
    bool closed = false;       // this epoch accepts no more pushes
    uint64_t high() const { return above.empty() ? low : *above.rbegin(); }
  };
  // Returns the newest epoch of the worker that this server has seen; 0 if it has seen none.
  uint64_t Newest(uint32_t worker) const;
  void RememberEpochs();
  void RememberToken(uint32_t worker, uint64_t epoch, uint64_t token);

  std::map<uint32_t, Fence> fences_;
  std::map<uint32_t, uint64_t> newest_;  // epochs from before the last Restore, by worker
  struct Started {
    uint64_t token;
    uint64_t epoch;
  };
  std::map<uint32_t, std::deque<Started>> started_;  // the last calls of StartEpoch with a token, by worker
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_SERVER_PUSH_FENCE_H_
