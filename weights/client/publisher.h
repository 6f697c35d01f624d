// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WEIGHTS_CLIENT_PUBLISHER_H_
#define TANDEM_WEIGHTS_CLIENT_PUBLISHER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "weights/client/weights.h"

namespace tandem::weights {

struct PublisherOptions {
  std::string model;
  std::string name = "publisher";  // for messages: "learner/0"
  // Versions are numbered above this one, and above the head of the store: for a learner that resumes.
  uint64_t after_version = 0;
};

// Describes a version besides its values.
struct PublishInfo {
  uint64_t step = 0;
  uint64_t items_consumed = 0;
  bool last = false;
};

// Publishes the versions of one model. Not thread-safe.
//
//   TANDEM_ASSIGN_OR_RETURN(auto publisher, Publisher::Create(&weights, {.model = "policy"}, deadline));
//   TANDEM_ASSIGN_OR_RETURN(uint64_t version, publisher->Publish(tensors, {.step = 7}, deadline));
class Publisher {
 public:
  // Begins an epoch, which refuses publishers of this model that have begun before. `weights` must outlive
  // the publisher.
  static absl::StatusOr<std::unique_ptr<Publisher>> Create(Weights* weights, const PublisherOptions& options,
                                                           absl::Time deadline);

  // Copies the tensors and commits them as the next version, whose number is returned. Blocks as
  // Weights::Commit does. Errors: those of MakeModel and Weights::Commit. FailedPrecondition says that a
  // newer publisher has begun: this one must not go on. After DeadlineExceeded and Unavailable Repeat commits
  // the same version, and Publish the next one.
  absl::StatusOr<uint64_t> Publish(absl::Span<const NamedTensor> tensors, const PublishInfo& info,
                                   absl::Time deadline);
  // Does the same with a model of MakeModel, whose values are not copied, and which must be used for nothing
  // else.
  absl::StatusOr<uint64_t> Publish(std::shared_ptr<Model> model, const PublishInfo& info,
                                   absl::Time deadline);
  // Commits the last version again. No effect if it is the head, or if there was none: for a store that may
  // have started again and lost it.
  absl::Status Repeat(absl::Time deadline);

  // The last version that Publish has tried to commit; number 0 if there is none.
  ModelVersion version() const { return {.epoch = epoch_, .number = version_}; }

 private:
  Publisher(Weights* weights, const PublisherOptions& options) : weights_(weights), options_(options) {}

  // Makes `model` the next version.
  std::shared_ptr<const Model> Next(std::shared_ptr<Model> model, const PublishInfo& info);

  Weights* const weights_;
  const PublisherOptions options_;
  uint64_t epoch_ = 0, version_ = 0;
  std::shared_ptr<const Model> last_;
};

}  // namespace tandem::weights

#endif  // TANDEM_WEIGHTS_CLIENT_PUBLISHER_H_
