#ifndef TANDEM_PS_SERVER_PUSH_FENCE_H_
#define TANDEM_PS_SERVER_PUSH_FENCE_H_

// Exactly once: which pushes this server has taken, per worker. A push is (worker, epoch, sequence);
// sequences count a worker's pushes to this server from 1 and may arrive out of order, because several are in
// flight.

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "absl/status/statusor.h"
#include "tandem/v1/checkpoint.pb.h"

namespace tandem::ps {

namespace v1 = ::tandem::v1;

// Not thread-safe.
class PushFence {
 public:
  // How far apart two pushes of one worker that are in flight together may be. Older ones are closed: a push
  // that comes from behind the window was refused long ago, or comes from a worker that restarted under its
  // old epoch.
  static constexpr uint64_t kWindow = 256;

  enum class Verdict { kNew, kDuplicate };

  // Whether the push is to be applied. Changes nothing. FailedPrecondition: an older epoch than the worker's
  // newest, or a sequence that cannot be a retry (names what was seen and what a restarted worker must do).
  // InvalidArgument: sequence 0.
  absl::StatusOr<Verdict> Check(uint32_t worker, uint64_t epoch, uint64_t sequence) const;
  // The push, for which Check said kNew, is taken. A higher epoch forgets the lower one's sequences.
  void Commit(uint32_t worker, uint64_t epoch, uint64_t sequence);

  // For checkpoints. Restore replaces everything.
  std::vector<v1::WorkerFence> Save() const;
  void Restore(const std::vector<v1::WorkerFence>& fences);
  // For a checkpoint written by another number of servers, whose sequences mean nothing here: workers must
  // come with an epoch above the ones given.
  void RestoreEpochsOnly(const std::vector<v1::WorkerFence>& fences);

 private:
  struct Fence {
    uint64_t epoch = 0;
    uint64_t low = 0;          // every sequence <= low is taken (or closed by the window)
    std::set<uint64_t> above;  // taken, > low + 1
    bool restored = false;     // comes from a checkpoint and has seen no push since
    bool closed = false;       // this epoch takes no more pushes
    uint64_t high() const { return above.empty() ? low : *above.rbegin(); }
  };
  std::map<uint32_t, Fence> fences_;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_SERVER_PUSH_FENCE_H_
