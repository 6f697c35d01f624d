// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WEIGHTS_CLIENT_LOCAL_WEIGHTS_H_
#define TANDEM_WEIGHTS_CLIENT_LOCAL_WEIGHTS_H_

#include <memory>
#include <stop_token>

#include "weights/client/weights.h"

namespace tandem::weights {

// A weight store of this process. Readers share the models' memory.
class LocalWeights : public Weights {
 public:
  // `store` must outlive this object.
  explicit LocalWeights(ModelStore* store) : store_(store) {}

  absl::StatusOr<EpochGrant> StartEpoch(absl::string_view model, absl::string_view publisher,
                                        absl::Time) override {
    return store_->StartEpoch(model, publisher);
  }
  absl::Status Commit(const std::shared_ptr<const Model>& model, absl::Time) override {
    return store_->Commit(model);
  }
  absl::StatusOr<std::shared_ptr<const Model>> Newer(absl::string_view model, const ModelVersion& than,
                                                     absl::Time deadline) override {
    return store_->Newer(model, than, deadline);
  }
  absl::StatusOr<ModelVersion> Head(absl::string_view model, absl::Time, std::stop_token = {}) override {
    const std::shared_ptr<const Model> head = store_->Head(model);
    return head == nullptr ? ModelVersion() : head->info.version;
  }

 private:
  ModelStore* const store_;
};

}  // namespace tandem::weights

#endif  // TANDEM_WEIGHTS_CLIENT_LOCAL_WEIGHTS_H_
