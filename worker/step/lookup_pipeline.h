#ifndef TANDEM_WORKER_STEP_LOOKUP_PIPELINE_H_
#define TANDEM_WORKER_STEP_LOOKUP_PIPELINE_H_

// Lookups that run ahead: a thread reads batches, deduplicates their ids and pulls their rows while the
// trainer computes on earlier ones. A budget of permits, taken at the lookup and given back when the batch's
// gradients are acknowledged, bounds how stale the rows can be (PERSIA's semaphore; Lian et al., KDD 2022).

#include <cstdint>
#include <deque>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "ps/client/client.h"
#include "worker/data/batch.h"
#include "worker/data/dataset.h"
#include "worker/step/lookup.h"

namespace tandem::worker {

struct PipelineOptions {
  int lookahead = 4;        // batches whose rows are being pulled or wait to be used
  int max_in_flight = 8;    // batches looked up whose gradients are not yet acknowledged; >= 1
  bool read_only = false;   // evaluation: no permits
  uint64_t first_step = 0;  // of the first batch; read_only: of all batches
};

// A batch with its rows. Goes back to the pipeline, to be used again, when its last holder lets go of it.
struct LookedUp {
  explicit LookedUp(const LookupPlan* plan) : lookup(plan) {}
  uint64_t step = 0;
  Batch batch;
  Lookup lookup;

 private:
  friend class LookupPipeline;
  bool answered = false;
  absl::Status status;
};

// Where the two threads' time went, in seconds.
struct PipelineTimes {
  double read = 0;  // waiting for, or parsing, the next batch
  double dedupe = 0;
  double permit = 0;  // waiting for the staleness budget
  double send = 0;
  double scatter = 0;  // the input's gradients into the rows'
  double push = 0;     // encoding and sending
};

// One pass over a reader. Used by one thread; owns two. The destructor stops the pass and waits
// for pulls and pushes under way (each ends by its own deadline). Outlives what it gave out.
class LookupPipeline {
 public:
  // `client`, `plan` and `reader` outlive the pipeline.
  LookupPipeline(ps::Client* client, const LookupPlan* plan, BatchReader* reader,
                 const PipelineOptions& options);
  ~LookupPipeline();

  // The next batch, in the reader's order, once its rows are there; nullptr at the end. Blocks. The first
  // error of reader, pulls or pushes ends the pass and is returned by every later call.
  absl::StatusOr<std::shared_ptr<LookedUp>> Next();

  // Scatters the batch's gradients (its GradientBuffers, now written) to its rows and pushes them, in the
  // order of these calls; returns at once. The caller may go on reading the batch and what was gathered from
  // it. The permit comes back with the acknowledgement.
  void Push(std::shared_ptr<LookedUp> batch, float learning_rate_factor);

  // Waits until every push is acknowledged; the first error of the pass. Bounded by the calls' own deadlines.
  absl::Status Drain();

  PipelineTimes times() const;
  uint64_t ids() const;
  uint64_t unique_ids() const;

 private:
  void LookupLoop();
  void PushLoop();
  void FailLocked(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddAheadTimes(const PipelineTimes& times) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes a permit and room for one more batch ahead; false when the pass is over.
  bool AwaitRoom();
  // A batch that nobody holds any more, or a new one.
  std::shared_ptr<LookedUp> TakeRecycled();

  ps::Client* const client_;
  const LookupPlan* const plan_;
  BatchReader* const reader_;
  const PipelineOptions options_;

  mutable absl::Mutex mutex_;
  // Before all that holds batches: they come back to it.
  std::vector<std::unique_ptr<LookedUp>> recycled_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<LookedUp>> ahead_
      ABSL_GUARDED_BY(mutex_);  // in order; the front may not be answered yet
  std::deque<std::pair<std::shared_ptr<LookedUp>, float>> behind_
      ABSL_GUARDED_BY(mutex_);                       // to push, with their factors
  int unacknowledged_ ABSL_GUARDED_BY(mutex_) = 0;   // permits taken
  int calls_under_way_ ABSL_GUARDED_BY(mutex_) = 0;  // callbacks that will still touch this object
  bool at_end_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
  PipelineTimes times_ ABSL_GUARDED_BY(mutex_);
  uint64_t ids_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t unique_ids_ ABSL_GUARDED_BY(mutex_) = 0;
  std::thread lookup_thread_;
  std::thread push_thread_;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_STEP_LOOKUP_PIPELINE_H_
