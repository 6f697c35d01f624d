// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WEIGHTS_CLIENT_REMOTE_WEIGHTS_H_
#define TANDEM_WEIGHTS_CLIENT_REMOTE_WEIGHTS_H_

#include <atomic>
#include <cstddef>
#include <memory>
#include <stop_token>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "base/bytes.h"
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
  absl::Status FillAndCommit(UnfilledModel* unfilled, absl::Time deadline) override;
  absl::StatusOr<std::shared_ptr<const Model>> Newer(absl::string_view model, const ModelVersion& than,
                                                     absl::Time deadline) override;
  absl::StatusOr<ModelVersion> Head(absl::string_view model, absl::Time deadline,
                                    std::stop_token cancel = {}) override;

 private:
  // Commits the version as one message.
  absl::Status CommitWhole(const std::shared_ptr<const Model>& model, absl::Time end);
  // Returns true if a version of this size should travel in pieces.
  bool InPieces(size_t bytes) const;
  // Commits the version in pieces. Calls `fill` for each range of the values, in their order, before it
  // sends them; not for all of them if it returns an error. NotFound or Unimplemented: the server has dropped
  // the pieces, or knows none, and CommitWhole may succeed.
  absl::Status CommitInPieces(const std::shared_ptr<const Model>& model,
                              absl::FunctionRef<void(size_t offset, size_t size)> fill, absl::Time end);
  // Returns the head with its values.
  absl::StatusOr<std::shared_ptr<const Model>> PullHead(absl::string_view model, absl::Time deadline);
  // Returns the version of `first`, the response to a request of the first piece, whose values are `begin`.
  // NotFound: the server has dropped it.
  absl::StatusOr<std::shared_ptr<Model>> PullRest(const ModelInfo& first, const Bytes& begin, absl::Time end);

  const std::shared_ptr<rpc::Channel> channel_;
  const Options options_;
  std::atomic<bool> knows_pieces_{true};  // false: the server has refused them
};

}  // namespace tandem::weights

#endif  // TANDEM_WEIGHTS_CLIENT_REMOTE_WEIGHTS_H_
