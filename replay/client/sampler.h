// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_REPLAY_CLIENT_SAMPLER_H_
#define TANDEM_REPLAY_CLIENT_SAMPLER_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "replay/client/remote_replay.h"

namespace tandem::replay {

struct SamplerOptions {
  std::string name;  // unique among the samplers of the server
  std::string table;
  SampleSize size;
  // How many batches are requested ahead, at least 1 and at most 16, and how many bytes these may have
  // together. One batch is requested in any case. Prefetched batches were drawn before the priorities changed
  // meanwhile.
  uint32_t prefetch = 2;
  size_t prefetch_bytes = size_t{64} << 20;
};

// Draws batches from a table of a server, ahead of their use. A batch whose answer is lost is requested again
// and arrives with the same items. Next may be called by one thread at a time.
class Sampler {
 public:
  // `replay` must outlive the sampler. InvalidArgument: no name, or a prefetch out of range.
  static absl::StatusOr<std::unique_ptr<Sampler>> Create(RemoteReplay* replay, const SamplerOptions& options);
  // Cancels the requests on their way.
  ~Sampler();

  // Returns the next batch that has arrived. Its committed version, and so its lags, are those of now, if the
  // learner commits through the same RemoteReplay. Blocks until there is one, or `deadline`. Errors:
  // DeadlineExceeded, which says why the table gives no samples if the server has said so; otherwise those of
  // Replay::Sample. After DeadlineExceeded and Unavailable the next call goes on waiting for the same
  // batches.
  absl::StatusOr<Batch> Next(absl::Time deadline = DefaultDeadline());

 private:
  struct Request {
    uint64_t sequence = 0;
    bool over = false;  // its call has ended, with `result`
    absl::StatusOr<Batch> result;
  };
  // The requests on their way, oldest first. Outlives the sampler while a call is under way.
  struct Requests {
    absl::Mutex mutex;
    std::deque<std::shared_ptr<Request>> all ABSL_GUARDED_BY(mutex);
    bool AnyOver() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
      return std::any_of(all.begin(), all.end(), [](const auto& request) { return request->over; });
    }
  };

  Sampler(RemoteReplay* replay, const SamplerOptions& options);
  void Start(const std::shared_ptr<Request>& request);
  // Requests batches until enough are on their way.
  void Prefetch();

  RemoteReplay* const replay_;
  const SamplerOptions options_;
  const uint64_t incarnation_;
  std::stop_source stop_;
  uint64_t next_sequence_ = 1;
  uint64_t acknowledged_ = 0;
  size_t batch_bytes_ = 0;  // of the last batch
  absl::Status reason_;     // why the last call that ended without a batch did so
  const std::shared_ptr<Requests> requests_ = std::make_shared<Requests>();
};

}  // namespace tandem::replay

#endif  // TANDEM_REPLAY_CLIENT_SAMPLER_H_
