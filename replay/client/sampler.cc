// SPDX-License-Identifier: Apache-2.0
#include "replay/client/sampler.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "replay/client/may_repeat.h"

namespace tandem::replay {
namespace {

constexpr uint32_t kMaxPrefetch = 16;  // a server keeps that many answers of a sampler
constexpr absl::Duration kPause = absl::Milliseconds(50);

size_t BytesOf(const Batch& batch) {
  size_t bytes = 0;
  for (const BatchColumn& column : batch.columns) bytes += column.bytes;
  return bytes;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Sampler>> Sampler::Create(RemoteReplay* replay,
                                                         const SamplerOptions& options) {
  if (options.name.empty()) return absl::InvalidArgumentError("a sampler must have a name");
  if (options.prefetch < 1 || options.prefetch > kMaxPrefetch) {
    return absl::InvalidArgumentError(absl::StrCat("sampler '", options.name, "': prefetch is ",
                                                   options.prefetch, "; it must be in [1, ", kMaxPrefetch,
                                                   "]"));
  }
  std::unique_ptr<Sampler> sampler(new Sampler(replay, options));
  sampler->Prefetch();
  return sampler;
}

Sampler::Sampler(RemoteReplay* replay, const SamplerOptions& options)
    : replay_(replay), options_(options), incarnation_(RemoteReplay::NewIncarnation()) {}

Sampler::~Sampler() { stop_.request_stop(); }

void Sampler::Start(const std::shared_ptr<Request>& request) {
  const RemoteReplay::SampleId id = {.sampler = options_.name,
                                     .incarnation = incarnation_,
                                     .sequence = request->sequence,
                                     .acknowledged = acknowledged_};
  replay_->StartSample(options_.table, options_.size, id, replay_->options().call_timeout, stop_.get_token(),
                       [requests = requests_, request](absl::StatusOr<Batch> result) {
                         absl::MutexLock lock(&requests->mutex);
                         request->result = std::move(result);
                         request->over = true;
                       });
}

void Sampler::Prefetch() {
  size_t wanted = options_.prefetch;
  if (batch_bytes_ > 0)
    wanted = std::min(wanted, std::max<size_t>(1, options_.prefetch_bytes / batch_bytes_));
  while (true) {
    auto request = std::make_shared<Request>();
    {
      absl::MutexLock lock(&requests_->mutex);
      // A request whose answer comes late must not be so far behind the others that the server has forgotten
      // it.
      const bool far = next_sequence_ - acknowledged_ > kMaxPrefetch;
      if (requests_->all.size() >= wanted || far) return;
      request->sequence = next_sequence_++;
      requests_->all.push_back(request);
    }
    Start(request);
  }
}

absl::StatusOr<Batch> Sampler::Next(absl::Time deadline) {
  Prefetch();
  while (true) {
    std::shared_ptr<Request> request;
    absl::StatusOr<Batch> result;
    {
      absl::MutexLock lock(&requests_->mutex);
      if (!Clock::Real()->AwaitUntil(&requests_->mutex, absl::Condition(requests_.get(), &Requests::AnyOver),
                                     deadline)) {
        return absl::DeadlineExceededError(absl::StrCat(
            "sampler '", options_.name, "', table '", options_.table, "': no batch has arrived",
            reason_.ok() ? "" : absl::StrCat("; the last call ended with: ", reason_.message())));
      }
      // The oldest batch that is there. One that is not must not keep the others: they may have the last
      // items.
      std::deque<std::shared_ptr<Request>>& all = requests_->all;
      auto found =
          std::find_if(all.begin(), all.end(), [](const auto& one) { return one->over && one->result.ok(); });
      if (found == all.end()) {
        found = std::find_if(all.begin(), all.end(), [](const auto& one) { return one->over; });
      }
      request = *found;
      request->over = false;
      result = std::move(request->result);
      if (result.ok() || !MayRepeat(result.status())) all.erase(found);
      acknowledged_ = all.empty() ? next_sequence_ - 1 : all.front()->sequence - 1;
      // A call that fails at once, because the server is away, is not repeated in a hurry.
      if (!result.ok() && !absl::IsDeadlineExceeded(result.status()) && MayRepeat(result.status())) {
        Clock::Real()->AwaitUntil(&requests_->mutex, absl::Condition(requests_.get(), &Requests::AnyOver),
                                  std::min(deadline, MonotonicNow() + kPause));
      }
    }
    if (result.ok()) {
      batch_bytes_ = BytesOf(*result);
      // The batch was drawn a while ago; its lags are those of its use.
      if (const std::optional<int64_t> last = replay_->LastCommit(options_.table))
        result->committed_version = std::max(result->committed_version.value_or(*last), *last);
      Prefetch();
      return result;
    }
    reason_ = result.status();
    if (!MayRepeat(reason_)) return reason_;
    Start(request);
    if (MonotonicNow() >= deadline) return reason_;
  }
}

}  // namespace tandem::replay
