// SPDX-License-Identifier: Apache-2.0
#include "ps/client/route/follower_reading_channel.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/logging.h"
#include "base/status.h"
#include "base/timed_wait.h"

namespace tandem::ps {
namespace {

constexpr absl::Duration kRefusedRest = absl::Milliseconds(10), kLongestRefusedRest = absl::Milliseconds(100);
constexpr absl::Duration kFailedRest = absl::Milliseconds(50), kLongestFailedRest = absl::Seconds(2);
// A follower that could not be connected to is tried again after this time.
constexpr absl::Duration kRetryOpen = absl::Seconds(1);

}  // namespace

struct FollowerSet::Reading {
  std::shared_ptr<FollowerSet> set;
  std::shared_ptr<Follower> follower;
  rpc::Channel* primary;
  std::string method;
  Bytes request;
  rpc::CallOptions options;
  absl::Time deadline;
  rpc::Channel::Done done;
};

FollowerSet::~FollowerSet() { Close(); }

void FollowerSet::Close() {
  std::thread thread;
  std::vector<std::shared_ptr<Follower>> followers;
  {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
    changed_.SignalAll();
    thread = std::move(thread_);
  }
  if (thread.get_id() == std::this_thread::get_id()) {
    thread.detach();  // it runs the `done` of a call, which has dropped the channel; it ends afterwards
  } else if (thread.joinable()) {
    thread.join();
  }
  {
    absl::MutexLock lock(&mutex_);
    followers.swap(followers_);
    std::move(retired_.begin(), retired_.end(), std::back_inserter(followers));
    retired_.clear();
  }
  for (const std::shared_ptr<Follower>& follower : followers) follower->channel.reset();
}

void FollowerSet::OnPlacement(const v1::ShardPlacement& placement) {
  std::vector<std::string> wanted;
  for (const v1::Replica& follower : placement.in_sync()) wanted.push_back(follower.address());
  absl::MutexLock lock(&mutex_);
  wanted_ = std::move(wanted);
  look_ = true;
  changed_.SignalAll();
}

void FollowerSet::Run() {
  absl::MutexLock lock(&mutex_);
  absl::Time again = absl::InfiniteFuture();
  while (!closing_) {
    if (look_ || MonotonicNow() >= again) {
      look_ = false;
      again = Connect();
    } else {
      tandem::WaitUntil(&changed_, &mutex_, again);
    }
  }
}

absl::Time FollowerSet::Connect() {
  const auto in_use =
      [this](const std::shared_ptr<Follower>& follower) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return std::find(wanted_.begin(), wanted_.end(), follower->address) != wanted_.end();
      };
  const auto first_unused = std::partition(followers_.begin(), followers_.end(), in_use);
  for (auto unused = first_unused; unused != followers_.end(); ++unused) (*unused)->retired = true;
  std::move(first_unused, followers_.end(), std::back_inserter(retired_));
  followers_.erase(first_unused, followers_.end());
  std::vector<std::shared_ptr<Follower>> closed;
  const auto first_closed = std::partition(retired_.begin(), retired_.end(),
                                           [](const auto& follower) { return follower->starting > 0; });
  std::move(first_closed, retired_.end(), std::back_inserter(closed));
  retired_.erase(first_closed, retired_.end());
  std::vector<std::string> missing;
  const absl::Time now = MonotonicNow();
  for (const std::string& address : wanted_) {
    const auto connected = [&](const auto& follower) { return follower->address == address; };
    if (std::any_of(followers_.begin(), followers_.end(), connected)) continue;
    const auto failed = open_again_.find(address);
    if (failed == open_again_.end() || failed->second <= now) missing.push_back(address);
  }
  mutex_.Unlock();
  // The calls under way at these go on at the primary.
  for (const std::shared_ptr<Follower>& follower : closed) follower->channel.reset();
  std::vector<std::shared_ptr<Follower>> opened;
  std::vector<std::string> failed;
  for (const std::string& address : missing) {
    absl::StatusOr<std::unique_ptr<rpc::Channel>> channel = options_.open(address);
    if (channel.ok()) {
      opened.push_back(std::make_shared<Follower>());
      opened.back()->address = address;
      opened.back()->channel = *std::move(channel);
    } else {
      LogDebug(absl::StrCat("no connection to the follower at ", address, ": ", channel.status().message()));
      failed.push_back(address);
    }
  }
  mutex_.Lock();
  followers_.insert(followers_.end(), opened.begin(), opened.end());
  for (const std::shared_ptr<Follower>& follower : opened) open_again_.erase(follower->address);
  for (const std::string& address : failed) open_again_[address] = MonotonicNow() + kRetryOpen;
  std::erase_if(open_again_, [this](const auto& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return std::find(wanted_.begin(), wanted_.end(), entry.first) == wanted_.end();
  });
  absl::Time again = absl::InfiniteFuture();
  for (const auto& [address, at] : open_again_) again = std::min(again, at);
  return again;
}

std::shared_ptr<FollowerSet::Follower> FollowerSet::Choose() {
  absl::MutexLock lock(&mutex_);
  if (closing_) return nullptr;
  // The thread owns the set as long as it runs, so that the set may be dropped on it.
  if (!thread_.joinable()) thread_ = std::thread([self = shared_from_this()] { self->Run(); });
  const absl::Time now = MonotonicNow();
  // Copies with equally few calls take turns.
  const size_t copies = followers_.size() + 1;
  const size_t first = turn_++ % copies;
  size_t best = copies;
  int fewest = 0;
  for (size_t i = 0; i < copies; ++i) {
    const size_t copy = (first + i) % copies;
    const bool primary = copy == followers_.size();
    if (!primary && followers_[copy]->rests_until > now) continue;
    const int calls = primary ? primary_calls_ : followers_[copy]->calls;
    if (best < copies && calls >= fewest) continue;
    best = copy;
    fewest = calls;
  }
  if (best >= followers_.size()) return nullptr;
  ++followers_[best]->calls;
  ++followers_[best]->starting;
  return followers_[best];
}

void FollowerSet::CallPrimary(rpc::Channel& primary, absl::string_view method, Bytes request,
                              const rpc::CallOptions& options, rpc::Channel::Done done) {
  {
    absl::MutexLock lock(&mutex_);
    ++primary_calls_;
  }
  primary.CallAsync(
      method, std::move(request), options,
      [self = shared_from_this(), done = std::move(done)](absl::StatusOr<Bytes> answer) mutable {
        {
          absl::MutexLock lock(&self->mutex_);
          --self->primary_calls_;
        }
        self.reset();
        std::move(done)(std::move(answer));
      });
}

void FollowerSet::Call(rpc::Channel& primary, absl::string_view method, Bytes request,
                       const rpc::CallOptions& options, rpc::Channel::Done done) {
  used_.store(true, std::memory_order_release);
  std::shared_ptr<Follower> follower = Choose();
  if (follower == nullptr) return CallPrimary(primary, method, std::move(request), options, std::move(done));
  const auto reading = std::make_shared<Reading>(Reading{.set = shared_from_this(),
                                                         .follower = std::move(follower),
                                                         .primary = &primary,
                                                         .method = std::string(method),
                                                         .request = std::move(request),
                                                         .options = options,
                                                         .deadline = MonotonicNow() + options.timeout,
                                                         .done = std::move(done)});
  rpc::CallOptions once = options;
  once.timeout = std::min(options_.patience, options.timeout / 2);
  once.idempotent = false;
  reading->follower->channel->CallAsync(
      method, reading->request, once,
      [reading](absl::StatusOr<Bytes> answer) { reading->set->OnAnswer(reading, std::move(answer)); });
  absl::MutexLock lock(&mutex_);
  if (--reading->follower->starting == 0 && reading->follower->retired) {
    look_ = true;  // the channel waits for this to be closed
    changed_.SignalAll();
  }
}

void FollowerSet::OnAnswer(const std::shared_ptr<Reading>& reading, absl::StatusOr<Bytes> answer) {
  bool closing;
  {
    absl::MutexLock lock(&mutex_);
    closing = closing_;
    Follower& follower = *reading->follower;
    --follower.calls;
    const absl::Time now = MonotonicNow();
    if (answer.ok()) {
      follower.failures = 0;
    } else if (now >= follower.rests_until) {  // calls that fail together are one failure
      const bool refused = absl::IsOutOfRange(answer.status());
      const absl::Duration rest =
          (refused ? kRefusedRest : kFailedRest) * (1 << std::min(follower.failures++, 10));
      follower.rests_until = now + std::min(rest, refused ? kLongestRefusedRest : kLongestFailedRest);
    }
  }
  const absl::Duration left = reading->deadline - MonotonicNow();
  if (answer.ok() || closing || reading->options.cancel.stop_requested() || left <= absl::ZeroDuration()) {
    return std::move(reading->done)(std::move(answer));
  }
  rpc::CallOptions options = reading->options;
  options.timeout = left;
  CallPrimary(*reading->primary, reading->method, std::move(reading->request), options,
              std::move(reading->done));
}

namespace {

class FollowerReadingChannel : public CopiesChannel {
 public:
  FollowerReadingChannel(std::unique_ptr<rpc::Channel> primary, std::shared_ptr<FollowerSet> followers)
      : CopiesChannel(std::move(primary)), followers_(std::move(followers)) {}
  ~FollowerReadingChannel() override {
    followers_->Close();  // its calls may go on at the primary until then
  }

  void CallAnyCopy(absl::string_view method, Bytes request, const rpc::CallOptions& options,
                   Done done) override {
    followers_->Call(to(), method, std::move(request), options, std::move(done));
  }
  // A thread that receives at the primary would not notice an answer of a follower.
  void PrepareInlinePoll() override {
    if (followers_->used()) return;
    CopiesChannel::PrepareInlinePoll();
    Prepared().push_back(this);
  }
  void InlinePoll(absl::FunctionRef<bool()> over, absl::Time deadline) override {
    std::vector<const void*>& prepared = Prepared();
    const auto last = std::find(prepared.rbegin(), prepared.rend(), this);
    if (last == prepared.rend()) return;
    prepared.erase(std::next(last).base());
    CopiesChannel::InlinePoll(over, deadline);
  }

 private:
  // The channels that this thread has announced to poll.
  static std::vector<const void*>& Prepared() {
    static thread_local std::vector<const void*> prepared;
    return prepared;
  }

  const std::shared_ptr<FollowerSet> followers_;
};

}  // namespace

std::unique_ptr<CopiesChannel> MakeFollowerReadingChannel(std::unique_ptr<rpc::Channel> primary,
                                                          std::shared_ptr<FollowerSet> followers) {
  return std::make_unique<FollowerReadingChannel>(std::move(primary), std::move(followers));
}

}  // namespace tandem::ps
