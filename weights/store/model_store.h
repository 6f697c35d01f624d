// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WEIGHTS_STORE_MODEL_STORE_H_
#define TANDEM_WEIGHTS_STORE_MODEL_STORE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "weights/model/model.h"

namespace tandem::weights {

struct ModelStoreOptions {
  uint32_t keep = 4;  // versions of each model, at least 1
  // Limits the bytes of the values of all models and versions; 0: no limit. A commit that would exceed it
  // drops versions of its model, the oldest first.
  uint64_t max_bytes = 0;
  size_t max_models = 1024;
  size_t max_watches = 65536;
  Clock* clock = Clock::Real();
};

// The answer to a publisher that starts.
struct EpochGrant {
  uint64_t epoch = 0;
  uint64_t version = 0;  // the number of the head; 0: there is none
};

// The state of a model, for reports.
struct ModelState {
  std::string model;
  uint64_t epoch = 0;  // of the newest publisher
  std::string publisher;
  std::shared_ptr<const Model> head;  // nullptr: nothing has been published
  std::vector<uint64_t> kept;         // the numbers of the versions, the oldest first
  uint64_t publishes = 0, refused = 0, pulls = 0, waiting = 0;
  absl::Time published_at = absl::InfinitePast();
};

// Versions of models in this process. A commit makes a version the head as a whole: a reader sees the old
// head or the new one. The newest `keep` versions stay if max_bytes permits. Thread-safe.
class ModelStore {
 public:
  // Gets a version that is newer than what the watch was for, or an error: Cancelled by Stop,
  // InvalidArgument (a bad name), or ResourceExhausted (max_watches). Runs once, without locks, on the thread
  // that commits or stops, or in Watch.
  using OnNewer = std::function<void(absl::StatusOr<std::shared_ptr<const Model>>)>;
  static constexpr size_t kKnownTokens = 64;

  explicit ModelStore(const ModelStoreOptions& options = {});
  ~ModelStore() { Stop(); }

  // Begins an epoch, larger than all before it, also those of an earlier process unless the wall clock was
  // set back. A call with the token of one of the model's last kKnownTokens calls returns the epoch of that
  // call and changes nothing: it is a repetition, which may even arrive after later calls. Token 0 is none.
  // InvalidArgument: an empty or too long name. ResourceExhausted: too many models.
  absl::StatusOr<EpochGrant> StartEpoch(absl::string_view model, absl::string_view publisher,
                                        uint64_t token = 0);
  // Makes `model` the head of model->info.model. OK without effect if it is the head already. Errors, after
  // which the head is unchanged:
  //
  // - FailedPrecondition: a newer epoch has begun, or the version does not exceed the head's number
  //
  // - DataLoss: info.digest is not the digest of the tensors and values
  //
  // - ResourceExhausted: max_bytes or max_models would be exceeded
  //
  // - InvalidArgument: an epoch or a number of 0 or above 2^62, a bad name of the model or the
  //   publisher, or a digest of an unknown kind
  absl::Status Commit(std::shared_ptr<const Model> model);
  // Returns the error that Commit would return now for a version with `bytes` of values, as far as it is
  // known without them. Returns true if the version is the head already, with info.digest.
  absl::StatusOr<bool> CheckCommit(const ModelInfo& info, uint64_t bytes);

  // Returns the head, or nullptr if nothing has been published under this name. If `published_at` is not
  // null, it gets the time of the head's commit.
  std::shared_ptr<const Model> Head(absl::string_view model, absl::Time* published_at = nullptr) const;
  // Returns a kept version, or the head if version.number is 0. NotFound names the versions that are kept.
  // `count`: counts a pull.
  absl::StatusOr<std::shared_ptr<const Model>> Get(absl::string_view model, const ModelVersion& version,
                                                   bool count = true);

  // Runs `done` with the head once it is newer than `than`: in this call, which then returns 0, or later. The
  // returned ticket is for CancelWatch. The model need not exist yet.
  uint64_t Watch(absl::string_view model, const ModelVersion& than, OnNewer done);
  // Returns true if the watch was waiting; its `done` then never runs.
  bool CancelWatch(uint64_t ticket);
  // Blocks until the head is newer than `than`, or `deadline`; then returns nullptr. Cancelled after Stop.
  absl::StatusOr<std::shared_ptr<const Model>> Newer(absl::string_view model, const ModelVersion& than,
                                                     absl::Time deadline);

  std::vector<ModelState> List() const;
  // Says in words whether readers can pull the version that a learner has committed to a replay table, of
  // whichever model: "version 7 (epoch 3) of model 'policy' was published 2 s ago by learner/0". NotFound
  // says that they cannot, and what there is. Empty: the epoch is not one of a weight store, so it is not
  // known.
  absl::StatusOr<std::string> Find(const ModelVersion& committed) const;
  // Ends all watches with Cancelled, also later ones. Idempotent.
  void Stop();

 private:
  // A call of StartEpoch with a token.
  struct Started {
    uint64_t token, epoch;
  };
  struct Entry {
    ModelState state;
    std::deque<Started> started;                        // the last kKnownTokens ones
    std::deque<std::shared_ptr<const Model>> versions;  // kept ones, the oldest first
  };
  struct Waiting {
    std::string model;
    ModelVersion than;
    OnNewer done;
  };

  absl::Status CheckName(absl::string_view model) const;
  absl::StatusOr<Entry*> FindOrAdd(absl::string_view model) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Implements Commit and CheckCommit: the checks without the lock, and those with it. The latter return true
  // if the version is the head already.
  absl::Status CheckInfo(const ModelInfo& info) const;
  absl::StatusOr<bool> CheckNext(const ModelInfo& info, uint64_t bytes, bool damaged)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckSuccessor(const Entry& entry, const ModelInfo& info, uint64_t bytes) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Grown(const std::pair<std::string, ModelVersion>& from) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  const ModelStoreOptions options_;
  mutable absl::Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of all kept versions
  uint64_t next_ticket_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<std::string, Entry, std::less<>> models_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, Waiting> watches_ ABSL_GUARDED_BY(mutex_);  // by ticket
};

}  // namespace tandem::weights

#endif  // TANDEM_WEIGHTS_STORE_MODEL_STORE_H_
