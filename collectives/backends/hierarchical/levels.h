// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_BACKENDS_HIERARCHICAL_LEVELS_H_
#define TANDEM_COLLECTIVES_BACKENDS_HIERARCHICAL_LEVELS_H_

// The backends of which a hierarchical one consists, and the propagation of an error of one level to all.

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "cluster/store/prefix_store.h"
#include "collectives/backend.h"
#include "collectives/backends/hierarchical/topology.h"

namespace tandem::collectives::hierarchical {

// One of these backends and its ranks.
struct Level {
  std::vector<int> ranks;  // of the whole group, by rank of the level
  std::unique_ptr<cluster::PrefixStore> store;
  std::unique_ptr<Backend> backend;  // nullptr: this rank is not in the level, or is alone in it
  uint64_t sequence = 0;             // of its next operation
  // Added to the user's time-out for operations of this level. Those of a later stage wait for ranks that are
  // themselves waiting, and should receive from them the names of the ranks that did not come.
  absl::Duration extra_timeout;
};

// Begin, Run and End may be called by one thread at a time, the others by any.
class Levels {
 public:
  static constexpr uint32_t kAlarmTag = 0xffffffff;  // of messages on the mesh; reserved

  explicit Levels(const BackendOptions& options);
  ~Levels();
  absl::Status Connect(const BackendOptions& options, const BackendFactory& inner,
                       const BackendFactory& outer);

  // The level of this host's ranks, the level of the leaders (used if this rank is one), and the level of all
  // ranks.
  Level inner, outer, mesh;
  const HostTopology topology;

  // Sets the user's operation to which the following parts belong.
  void Begin(const Operation& operation);
  // Runs a part of the operation: sets its sequence (not on the mesh), context and timeout. Returns OK at
  // once if this rank is alone on the level. An error breaks all levels; error() returns it from then on.
  absl::Status Run(Level* level, Operation part, bool last = false);
  // Ends the user's operation.
  void End();
  // Breaks all levels because `status` happened to the user's operation on `level`.
  absl::Status Break(const Level& level, const Operation& operation, const absl::Status& status) {
    return Break(level, Call{FingerprintOf(operation), operation.timeout, true}, status);
  }
  void Abort(const absl::Status& reason);
  absl::Status error() const;

 private:
  // The call that the user has made.
  struct Call {
    Fingerprint fingerprint;
    absl::Duration timeout;
    bool running = false;
  };
  // Starts a receive on the mesh that is never fulfilled and ends when any rank breaks the mesh or dies.
  // Without it, a rank that is not in the broken level, or is in no call, would not learn of the failure.
  void SetAlarm();
  absl::Status Break(const Level& level, const Call& call, const absl::Status& status);
  absl::Status Make(const BackendOptions& options, const BackendFactory& factory, const std::string& name,
                    const std::vector<int>& ranks, Level* level);
  // Translates `status` of a level for a user who is in `call`.
  absl::Status Explain(const Level& level, const Call& call, const absl::Status& status);
  // Finds the rank of `level` that has called another operation than this one.
  absl::Status FindDisagreement(const Level& level, const Fingerprint& mine, const absl::Status& status);
  // Stores `reason` if it is the first; returns the reason that is stored.
  absl::Status FirstReason(const absl::Status& reason);
  absl::Status BreakAll(const absl::Status& reason);

  const std::string group_;
  const int rank_;
  cluster::Store* const store_;
  uint64_t context_ = 0;  // of the user's operation
  absl::Time deadline_;

  mutable absl::Mutex mutex_;
  Call call_ ABSL_GUARDED_BY(mutex_);
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  bool alarmed_ ABSL_GUARDED_BY(mutex_) = false;  // a thread of the mesh is handling the alarm
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::collectives::hierarchical

#endif  // TANDEM_COLLECTIVES_BACKENDS_HIERARCHICAL_LEVELS_H_
