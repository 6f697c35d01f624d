// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_STEP_LOOKUP_PIPELINE_H_
#define TANDEM_WORKER_STEP_LOOKUP_PIPELINE_H_

// Runs lookups ahead of the trainer: a thread reads batches, deduplicates their ids and pulls their rows
// while the trainer computes on earlier batches. A budget of permits bounds how stale the rows can be: a
// lookup takes a permit, and the acknowledgement of the batch's gradients returns it (PERSIA's semaphore;
// Lian et al., KDD 2022).

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
  int lookahead = 4;        // batches whose rows are being pulled or wait to be used; >= 1
  int max_in_flight = 8;    // batches looked up whose gradients are not yet acknowledged; >= 1
  bool read_only = false;   // evaluation: no permits, no pushes, no new rows
  uint64_t first_step = 0;  // step of the first batch; with read_only, of all batches
  // The rows that workers replicate (Lookup); nullptr: none. Must not change during the pass.
  ps::ReplicatedTables* replicas = nullptr;
  // The share of a global batch that each push carries (ps::PushOptions).
  float batch_share = 1.0f;
};

// A batch and its rows. When the last reference is dropped, the object returns to the pipeline and is reused.
struct LookedUp {
  LookedUp(const LookupPlan* plan, ps::ReplicatedTables* replicas) : lookup(plan, replicas) {}
  uint64_t step = 0;
  Batch batch;
  Lookup lookup;

 private:
  friend class LookupPipeline;
  bool pull_done = false;
  absl::Status status;
};

// Wall time of the pipeline's two threads by stage, in seconds.
struct PipelineTimes {
  double read = 0;  // waiting for the reader, or parsing, the next batch
  double dedupe = 0;
  double permit = 0;   // waiting for a permit or for `lookahead`
  double send = 0;     // serializing and sending pulls
  double scatter = 0;  // converting input gradients to row gradients
  double push = 0;     // encoding and sending pushes
  void Add(const PipelineTimes& other) {
    read += other.read;
    dedupe += other.dedupe;
    permit += other.permit;
    send += other.send;
    scatter += other.scatter;
    push += other.push;
  }
};

// One pass over a reader. Used by one thread; owns a lookup thread and, unless read_only, a push thread. The
// pipeline must outlive the batches that it returned. The destructor stops reading, sends the gradients that
// Push has queued, and waits for pulls and pushes in flight (each ends by its own deadline).
class LookupPipeline {
 public:
  // `client`, `plan` and `reader` outlive the pipeline.
  LookupPipeline(ps::Client* client, const LookupPlan* plan, BatchReader* reader,
                 const PipelineOptions& options);
  ~LookupPipeline();

  // Returns the next batch, in the reader's order, once its rows have arrived; nullptr at the end. Blocks.
  // The first error of the reader, a pull or a push ends the pass, and every later call returns it.
  absl::StatusOr<std::shared_ptr<LookedUp>> Next();

  // Queues the batch's gradients (its GradientBuffers, which must be written) and returns at once. The push
  // thread converts them to row gradients and pushes them, in the order of these calls. The caller may go on
  // reading the batch and its gathered input. The acknowledgement of the push returns the batch's permit. Not
  // allowed with read_only.
  void Push(std::shared_ptr<LookedUp> batch, float learning_rate_factor);

  // Waits until every push is acknowledged or the pass has failed; returns the first error of the pass. The
  // wait is bounded by the calls' own deadlines.
  absl::Status Drain();

  PipelineTimes times() const;
  // Ids looked up so far, with repetitions, and distinct ids of each batch.
  uint64_t ids() const;
  uint64_t unique_ids() const;
  // Returns what replicas and servers have served so far, by table and segment.
  ServedCounts served() const;

 private:
  void LookupLoop();
  void PushLoop();
  void FailLocked(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddLookupTimes(const PipelineTimes& times) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits for space in the lookahead and for a permit, and takes both. Returns false if the pass is over.
  bool AcquirePermit();
  // Returns an unused batch, or a new one.
  std::shared_ptr<LookedUp> TakeRecycled();

  ps::Client* const client_;
  const LookupPlan* const plan_;
  BatchReader* const reader_;
  const PipelineOptions options_;

  mutable absl::Mutex mutex_;
  // Declared before all members that hold batches, because batches return to it when they are destroyed.
  std::vector<std::unique_ptr<LookedUp>> recycled_ ABSL_GUARDED_BY(mutex_);
  // Batches to be returned by Next, in order; the pull of the front may still be in flight.
  std::deque<std::shared_ptr<LookedUp>> pulled_ ABSL_GUARDED_BY(mutex_);
  // Batches to push, with their learning rate factors.
  std::deque<std::pair<std::shared_ptr<LookedUp>, float>> to_push_ ABSL_GUARDED_BY(mutex_);
  int permits_in_use_ ABSL_GUARDED_BY(mutex_) = 0;   // permits taken
  int calls_in_flight_ ABSL_GUARDED_BY(mutex_) = 0;  // callbacks that will still use this object
  bool at_end_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
  PipelineTimes times_ ABSL_GUARDED_BY(mutex_);
  uint64_t ids_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t unique_ids_ ABSL_GUARDED_BY(mutex_) = 0;
  ServedCounts served_ ABSL_GUARDED_BY(mutex_);
  std::thread lookup_thread_;
  std::thread push_thread_;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_STEP_LOOKUP_PIPELINE_H_
