// SPDX-License-Identifier: Apache-2.0
#include "worker/rl/roles/policy_publisher.h"

#include <algorithm>

#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/status.h"
#include "replay/client/may_repeat.h"
#include "worker/rl/actor/unroll_actor.h"
#include "worker/rl/policy/policy_weights.h"

namespace tandem::rl {
namespace {

constexpr absl::Duration kPublishTimeout = absl::Minutes(2);
// The time of the first attempt to publish. Each one after it has twice as long, at most kLongestSlice and a
// second for each kPublishBytesPerSecond: the learner sees only between attempts that it is to stop, and
// containers are often killed 20 s later.
constexpr absl::Duration kPublishSlice = absl::Seconds(5), kLongestSlice = absl::Seconds(10);
constexpr double kPublishBytesPerSecond = 50e6;
// An attempt may fail at once.
constexpr absl::Duration kPublishPause = absl::Milliseconds(100);
constexpr char kForStore[] = "the store of the weights (replay/0)";

}  // namespace

absl::Status PolicyPublisher::Begin(uint64_t after_version, Policy& policy,
                                    const weights::PublishInfo& info) {
  const absl::Time end = MonotonicNow() + kPublishTimeout;
  const WaitLog::Wait wait = WaitLog::Begin(waits_, kForStore);
  for (;;) {
    auto publisher = weights::Publisher::Create(
        weights_, {.model = kPolicyModel, .name = "learner/0", .after_version = after_version},
        std::min(end, MonotonicNow() + kPublishSlice));
    if (publisher.ok()) {
      publisher_ = *std::move(publisher);
      return Publish(policy, info);
    }
    if (!replay::MayRepeat(publisher.status()) || must_stop_() || MonotonicNow() >= end)
      return publisher.status();
    absl::SleepFor(kPublishPause);
  }
}

absl::Status PolicyPublisher::Publish(Policy& policy, const weights::PublishInfo& info) {
  if (!begun()) return absl::OkStatus();
  const absl::Time end = MonotonicNow() + kPublishTimeout;
  const auto bytes = static_cast<double>(policy.parameters().values().size() * sizeof(float));
  const absl::Duration longest = kLongestSlice + absl::Seconds(bytes / kPublishBytesPerSecond);
  absl::Duration slice = kPublishSlice;
  const WaitLog::Wait wait = WaitLog::Begin(waits_, kForStore);
  absl::Status published = publisher_->Publish(TensorsOf(policy), info, MonotonicNow() + slice).status();
  while (replay::MayRepeat(published) && !must_stop_() && MonotonicNow() < end) {
    absl::SleepFor(kPublishPause);
    slice = std::min(2 * slice, longest);  // large parameters may need longer
    published = publisher_->Repeat(std::min(end, MonotonicNow() + slice));
  }
  return published;
}

}  // namespace tandem::rl
