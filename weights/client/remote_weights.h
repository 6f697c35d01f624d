// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WEIGHTS_CLIENT_REMOTE_WEIGHTS_H_
#define TANDEM_WEIGHTS_CLIENT_REMOTE_WEIGHTS_H_

#include <memory>

#include "absl/time/time.h"
#include "rpc/channel.h"
#include "weights/client/weights.h"

namespace tandem::weights {

struct RemoteWeightsOptions {
  // The longest wait of one call of Newer, which makes another one until its deadline. Newer gets
  // the values of a version that has been announced until its deadline, and within this time if that is
  // later.
  absl::Duration call_timeout = absl::Seconds(30);
};

// The weight store of a server. All calls are repeated after a broken connection, also to a server that has
// started again. Such a server has lost all versions: Newer then waits until its publisher publishes again.
class RemoteWeights : public Weights {
 public:
  using Options = RemoteWeightsOptions;
  explicit RemoteWeights(std::shared_ptr<rpc::Channel> channel, const Options& options = {})
      : channel_(std::move(channel)), options_(options) {}

  absl::StatusOr<EpochGrant> StartEpoch(absl::string_view model, absl::string_view publisher,
                                        absl::Time deadline) override;
  absl::Status Commit(const std::shared_ptr<const Model>& model, absl::Time deadline) override;
  absl::StatusOr<std::shared_ptr<const Model>> Newer(absl::string_view model, const ModelVersion& than,
                                                     absl::Time deadline) override;
  absl::StatusOr<ModelVersion> Head(absl::string_view model, absl::Time deadline) override;

 private:
  // Returns the head with its values.
  absl::StatusOr<std::shared_ptr<const Model>> PullHead(absl::string_view model, absl::Time deadline);

  const std::shared_ptr<rpc::Channel> channel_;
  const Options options_;
};

}  // namespace tandem::weights

#endif  // TANDEM_WEIGHTS_CLIENT_REMOTE_WEIGHTS_H_
