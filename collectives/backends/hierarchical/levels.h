#ifndef TANDEM_COLLECTIVES_BACKENDS_HIERARCHICAL_LEVELS_H_
#define TANDEM_COLLECTIVES_BACKENDS_HIERARCHICAL_LEVELS_H_

// The backends that a hierarchical one is made of, and how an error of one becomes the error of all.

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "collectives/backend.h"
#include "collectives/backends/hierarchical/topology.h"
#include "collectives/store/prefix_store.h"

namespace tandem::collectives::hierarchical {

// One of them.
struct Level {
  std::vector<int> ranks;  // of the whole group, by the level's own numbers
  std::unique_ptr<PrefixStore> store;
  std::unique_ptr<Backend> backend;  // nullptr: this rank has no part in it, or is alone in it
  uint64_t sequence = 0;             // of its next operation
  // How much later than the user's time-out its operations end: those of a later stage wait for ranks that
  // are themselves waiting, and should hear from these whom they wait for.
  absl::Duration patience;
};

// Begin, Run and End are for one thread at a time, the others for any.
class Levels {
 public:
  static constexpr uint32_t kAlarmTag = 0xffffffff;  // of messages on the mesh: not for users

  explicit Levels(const BackendOptions& options);
  ~Levels();
  absl::Status Connect(const BackendOptions& options, const BackendFactory& inner,
                       const BackendFactory& outer);

  // The ranks of this host; the leaders, if this is one; all ranks.
  Level inner, outer, mesh;
  const HostTopology topology;

  // The user's operation that the next ones are parts of.
  void Begin(const Operation& operation);
  // Runs a part of it: sets its sequence (not on the mesh), context and timeout. OK at once where this rank
  // is alone on the level. An error breaks all levels, and is what Error() returns from then on.
  absl::Status Run(Level* level, Operation part, bool last = false);
  // The user's operation is over.
  void End();
  // Breaks all levels because of what happened to the user's operation on `level`.
  absl::Status Break(const Level& level, const Operation& operation, const absl::Status& status) {
    return Break(level, Call{FingerprintOf(operation), operation.timeout, true}, status);
  }
  void Abort(const absl::Status& reason);
  absl::Status error() const;

 private:
  // What the user calls.
  struct Call {
    Fingerprint fingerprint;
    absl::Duration timeout;
    bool running = false;
  };
  // A rank that has no part in a level that breaks, or is in no call, would not hear of it: so each keeps a
  // receive on the mesh that nothing ever fulfils, and that ends when any rank breaks the mesh or dies.
  void SetAlarm();
  absl::Status Break(const Level& level, const Call& call, const absl::Status& status);
  absl::Status Make(const BackendOptions& options, const BackendFactory& factory, const std::string& name,
                    const std::vector<int>& ranks, Level* level);
  // What `status` of a level means to a user who is in `call`.
  absl::Status Explain(const Level& level, const Call& call, const absl::Status& status);
  // Which rank of `level` has called something else than this one.
  absl::Status FindDisagreement(const Level& level, const Fingerprint& mine, const absl::Status& status);
  // Leaves `reason` in the store if it is the first there; returns what is there.
  absl::Status FirstReason(const absl::Status& reason);
  absl::Status BreakAll(const absl::Status& reason);

  const std::string group_;
  const int rank_;
  Store* const store_;
  uint64_t context_ = 0;  // of the user's operation
  absl::Time deadline_;

  mutable absl::Mutex mutex_;
  Call call_ ABSL_GUARDED_BY(mutex_);
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  bool alarmed_ ABSL_GUARDED_BY(mutex_) = false;  // the alarm is being seen to, in a thread of the mesh's
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::collectives::hierarchical

#endif  // TANDEM_COLLECTIVES_BACKENDS_HIERARCHICAL_LEVELS_H_
