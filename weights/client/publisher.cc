// SPDX-License-Identifier: Apache-2.0
#include "weights/client/publisher.h"

#include <algorithm>
#include <utility>

#include "base/status.h"

namespace tandem::weights {

absl::StatusOr<std::unique_ptr<Publisher>> Publisher::Create(Weights* weights,
                                                             const PublisherOptions& options,
                                                             absl::Time deadline) {
  TANDEM_ASSIGN_OR_RETURN(const EpochGrant grant, weights->StartEpoch(options.model, options.name, deadline));
  std::unique_ptr<Publisher> publisher(new Publisher(weights, options));
  publisher->epoch_ = grant.epoch;
  publisher->version_ = std::max(grant.version, options.after_version);
  return publisher;
}

absl::StatusOr<uint64_t> Publisher::Publish(absl::Span<const NamedTensor> tensors, const PublishInfo& info,
                                            absl::Time deadline) {
  TANDEM_ASSIGN_OR_RETURN(UnfilledModel unfilled, PrepareModel(tensors));
  last_ = Next(unfilled.model, info);
  TANDEM_RETURN_IF_ERROR(weights_->FillAndCommit(&unfilled, deadline));
  return version_;
}

absl::StatusOr<uint64_t> Publisher::Publish(std::shared_ptr<Model> model, const PublishInfo& info,
                                            absl::Time deadline) {
  last_ = Next(std::move(model), info);
  TANDEM_RETURN_IF_ERROR(weights_->Commit(last_, deadline));
  return version_;
}

std::shared_ptr<const Model> Publisher::Next(std::shared_ptr<Model> model, const PublishInfo& info) {
  model->info.model = options_.model;
  model->info.publisher = options_.name;
  model->info.version = {.epoch = epoch_, .number = ++version_};
  model->info.step = info.step;
  model->info.items_consumed = info.items_consumed;
  model->info.last = info.last;
  return model;
}

absl::Status Publisher::Repeat(absl::Time deadline) {
  return last_ == nullptr ? absl::OkStatus() : weights_->Commit(last_, deadline);
}

}  // namespace tandem::weights
