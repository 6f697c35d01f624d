// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WEIGHTS_CLIENT_PUBLISHER_H_
#define TANDEM_WEIGHTS_CLIENT_PUBLISHER_H_

#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "weights/client/weights.h"

namespace tandem::weights {

// Describes a version besides its values.
struct PublishInfo {
  uint64_t step = 0;
  uint64_t items_consumed = 0;
  bool last = false;
};

// A receiver of the versions that a publisher has published, such as a replay table that paces actors by them
// (rl::CommittedTable). Thread-safe. Deadlines are times of MonotonicNow().
class VersionReceiver {
 public:
  virtual ~VersionReceiver() = default;
  // Returns the number of the last version that it was told; 0: none.
  virtual absl::StatusOr<uint64_t> Head(absl::Time deadline) = 0;
  // Says that readers can pull a version. A repetition has no effect.
  virtual absl::Status Commit(const ModelVersion& version, const PublishInfo& info, absl::Time deadline) = 0;
};

struct PublisherOptions {
  std::string model;
  std::string name = "publisher";  // for messages: "learner/0"
  // Versions are numbered above this one, and above the heads of the store and of `commit_to`: for a learner
  // that resumes.
  uint64_t after_version = 0;
  // Is told each version once it is in the store. Must outlive the publisher. nullptr: nothing is.
  VersionReceiver* commit_to = nullptr;
  // How often a thread of the publisher looks whether the store still has the last version, and publishes it
  // again if not. ZeroDuration: never, for a store of this process, which cannot start again by itself.
  absl::Duration repair_every = absl::Milliseconds(500);
};

// Publishes the versions of one model, and tells them to `commit_to`. A store that has started again is
// empty, and actors would wait for the version that the learner has committed, the learner for the actors: a
// thread of the publisher therefore publishes the last version again, also while the learner computes or
// waits. The functions may be called by one thread at a time.
//
//   TANDEM_ASSIGN_OR_RETURN(auto publisher, Publisher::Create(&weights, {.model = "policy"}, deadline));
//   TANDEM_ASSIGN_OR_RETURN(uint64_t version, publisher->Publish(tensors, {.step = 7}, deadline));
class Publisher {
 public:
  // Begins an epoch, which refuses publishers of this model that have begun before. `weights` must outlive
  // the publisher.
  static absl::StatusOr<std::unique_ptr<Publisher>> Create(Weights* weights, const PublisherOptions& options,
                                                           absl::Time deadline);
  // Ends the thread. Blocks until a version that is being published again has been taken or refused.
  ~Publisher();

  // Copies the tensors, publishes them as the next version, whose number is returned, and commits it to
  // `commit_to`. Blocks as Weights::Commit does. Errors: those of MakeModel, Weights::Commit and
  // VersionReceiver::Commit. FailedPrecondition says that a newer publisher has begun: this one must not go
  // on. After DeadlineExceeded and Unavailable this goes on with the version in the background; Repeat waits
  // for it, and Publish takes its place by the next version.
  absl::StatusOr<uint64_t> Publish(absl::Span<const NamedTensor> tensors, const PublishInfo& info,
                                   absl::Time deadline);
  // Does the same with a model of MakeModel, whose values are not copied, and which must be used for nothing
  // else.
  absl::StatusOr<uint64_t> Publish(std::shared_ptr<Model> model, const PublishInfo& info,
                                   absl::Time deadline);
  // Publishes and commits the last version again. No effect if it is the head, or if there was none.
  absl::Status Repeat(absl::Time deadline);

  // Ends the thread's work: a version that its store loses from now on is published again by Repeat only.
  // Does not block. May be called by any thread.
  void EndRepairs();

  // Returns why the last version cannot be published again: FailedPrecondition if another publisher has begun
  // meanwhile. OK otherwise, also while the store is away.
  absl::Status status() const;
  // The last version that Publish has tried to commit; number 0 if there is none.
  ModelVersion version() const;

 private:
  Publisher(Weights* weights, const PublisherOptions& options) : weights_(weights), options_(options) {}

  // Makes `model` the next version, and keeps the thread from it until Publish has ended.
  std::shared_ptr<const Model> Begin(std::shared_ptr<Model> model, const PublishInfo& info);
  // Waits until the thread publishes nothing.
  absl::Status AwaitThread(absl::Time deadline);
  // Commits the version to `commit_to` if `published` is OK, and lets the thread go on with it.
  absl::Status End(const std::shared_ptr<const Model>& model, absl::Status published, absl::Time deadline);
  absl::Status Tell(const Model& model, absl::Time deadline);
  // The thread.
  void RepairUntil(const std::stop_token& stop);
  // Publishes the last version again if the store has lost it, or if the last attempt was late.
  void Repair(const std::stop_token& stop);

  Weights* const weights_;
  const PublisherOptions options_;
  uint64_t epoch_ = 0;  // set before the thread starts
  mutable absl::Mutex mutex_;
  uint64_t version_ ABSL_GUARDED_BY(mutex_) = 0;
  std::shared_ptr<const Model> last_ ABSL_GUARDED_BY(mutex_);
  bool publishing_ ABSL_GUARDED_BY(mutex_) = false;  // Publish or Repeat is under way
  bool repairing_ ABSL_GUARDED_BY(mutex_) = false;   // the thread publishes the last version
  bool due_ ABSL_GUARDED_BY(mutex_) = false;         // the last attempt was late: the version may be missing
  absl::Status refused_ ABSL_GUARDED_BY(mutex_);     // the last version, for ever
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::jthread thread_;  // none if repair_every is 0
};

}  // namespace tandem::weights

#endif  // TANDEM_WEIGHTS_CLIENT_PUBLISHER_H_
