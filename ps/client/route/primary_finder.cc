// SPDX-License-Identifier: Apache-2.0
#include "ps/client/route/primary_finder.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/timed_wait.h"

namespace tandem::ps {
namespace {

constexpr absl::string_view kGetPlacement = "/tandem.v1.Failover/GetPlacement";

// How long a copy may wait for a change before it answers a question.
constexpr absl::Duration kPatience = absl::Seconds(2);
constexpr absl::Duration kSuspectPatience = absl::Seconds(1);
// The time that an answer may take on its way.
constexpr absl::Duration kGrace = absl::Seconds(1);
// The pauses between questions to one copy, while the primary is sought and while it serves.
constexpr absl::Duration kFirstPause = absl::Milliseconds(5), kLongestPause = absl::Milliseconds(50);
constexpr absl::Duration kCalmPause = absl::Milliseconds(50), kLongestCalmPause = absl::Seconds(2);
// The store is asked when the copies have not named a primary for this long, and then as often.
constexpr absl::Duration kBeforeStore = absl::Milliseconds(100), kBetweenStore = absl::Milliseconds(250);
constexpr absl::Duration kStoreTimeout = absl::Seconds(1);
// Copies beyond those that the document names.
constexpr size_t kOldCopies = 4;

absl::Duration Pause(absl::Duration first, absl::Duration longest, int failures) {
  absl::Duration pause = first;
  for (int i = 1; i < failures && pause < longest; ++i) pause = 1.6 * pause;
  return std::min(pause, longest);
}

std::string Describe(const v1::ReplicaStatus& status) {
  const std::string role = v1::ReplicaRole_Name(status.role());
  constexpr absl::string_view kPrefix = "REPLICA_ROLE_";
  std::string text = absl::StrCat("is ", role.size() > kPrefix.size() ? role.substr(kPrefix.size()) : role,
                                  ", knows version ", status.placement().version());
  if (!status.placement().primary().address().empty()) {
    absl::StrAppend(&text, " with the primary ", status.placement().primary().address());
  }
  if (!status.failure().empty()) absl::StrAppend(&text, ": ", status.failure());
  return text;
}

}  // namespace

PrimaryFinder::PrimaryFinder(Options options) : options_(std::move(options)) {
  absl::MutexLock lock(&mutex_);
  primary_ = options_.addresses.front();
  for (size_t i = options_.addresses.size(); i-- > 0;) AddCopy(options_.addresses[i]);
}

PrimaryFinder::~PrimaryFinder() { Stop(); }

void PrimaryFinder::Stop() {
  std::thread locator;
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
    changed_.SignalAll();
    locator = std::move(locator_);
  }
  if (locator.joinable()) locator.join();
  if (thread_.joinable()) thread_.join();
  std::vector<std::shared_ptr<Copy>> copies;
  {
    absl::MutexLock lock(&mutex_);
    copies.swap(copies_);
    copies.insert(copies.end(), forgotten_.begin(), forgotten_.end());
    forgotten_.clear();
  }
  // Cancels the questions under way, whose answers still use this object.
  for (const std::shared_ptr<Copy>& copy : copies) copy->channel.reset();
}

void PrimaryFinder::Start() {
  thread_ = std::thread([this] { Run(); });
}

void PrimaryFinder::Suspect(absl::string_view why) {
  absl::MutexLock lock(&mutex_);
  for (const std::shared_ptr<Copy>& copy : copies_) {
    if (copy->address == primary_) copy->last_answer = std::string(why);
  }
  SuspectLocked();
}

void PrimaryFinder::SuspectLocked() {
  if (suspect_ || stop_) return;
  suspect_ = true;
  confirmed_ = false;
  suspected_at_ = questions_;
  for (const std::shared_ptr<Copy>& copy : copies_) {
    copy->next = absl::InfinitePast();
    copy->failures = 0;
  }
  if (options_.locate != nullptr && !locator_.joinable()) locator_ = std::thread([this] { RunLocator(); });
  look_ = true;
  changed_.SignalAll();
}

std::string PrimaryFinder::Tried() const {
  absl::MutexLock lock(&mutex_);
  std::string text;
  for (const std::shared_ptr<Copy>& copy : copies_) {
    absl::StrAppend(&text, text.empty() ? "" : "; ", copy->address,
                    copy->address == primary_ ? " (the last primary): " : ": ", copy->last_answer);
  }
  if (options_.locate != nullptr) absl::StrAppend(&text, "; the job's store: ", store_said_);
  return text;
}

void PrimaryFinder::Run() {
  absl::MutexLock lock(&mutex_);
  absl::Time tidy_at = absl::InfinitePast();
  bool unconnected = false;  // `found` has failed for the present primary
  while (!stop_) {
    look_ = false;
    if (!forgotten_.empty()) {
      std::vector<std::shared_ptr<Copy>> closed = std::move(forgotten_);
      forgotten_.clear();
      mutex_.Unlock();
      for (const std::shared_ptr<Copy>& copy : closed) copy->channel.reset();
      closed.clear();
      mutex_.Lock();
      continue;
    }
    if (learned_) {
      learned_ = false;
      const v1::ShardPlacement placement = placement_;
      mutex_.Unlock();
      if (options_.placed != nullptr) options_.placed(placement);
      mutex_.Lock();
      continue;
    }
    if (moved_ || confirmed_) {
      const bool moved = std::exchange(moved_, false) || unconnected;
      confirmed_ = false;
      const std::string address = primary_;
      mutex_.Unlock();
      const absl::Status status = options_.found(address, moved);
      mutex_.Lock();
      // `tidy` has more to do after a move.
      tidy_at = absl::InfinitePast();
      unconnected = !status.ok();
      if (unconnected && !moved_) {
        SuspectLocked();
        for (const std::shared_ptr<Copy>& copy : copies_) {
          if (copy->address == address) copy->last_answer = std::string(status.message());
        }
      }
      continue;
    }
    if (MonotonicNow() >= tidy_at) {
      mutex_.Unlock();
      const absl::Duration again = options_.tidy();
      mutex_.Lock();
      tidy_at = MonotonicNow() + std::min(again, kPatience);
      continue;
    }
    absl::Time next = tidy_at;
    std::vector<Question> due = DueQuestions(&next);
    if (!due.empty()) {
      mutex_.Unlock();
      for (Question& question : due) Ask(std::move(question));
      mutex_.Lock();
      continue;
    }
    if (!look_) tandem::WaitUntil(&changed_, &mutex_, next);
  }
}

const PrimaryFinder::Copy* PrimaryFinder::WatchedFollower() {
  const size_t followers = static_cast<size_t>(placement_.in_sync_size());
  if (followers == 0) return nullptr;
  const std::string& address = placement_.in_sync(static_cast<int>(watched_ % followers)).address();
  for (const std::shared_ptr<Copy>& copy : copies_) {
    if (copy->address == address) return copy.get();
  }
  return nullptr;
}

std::vector<PrimaryFinder::Question> PrimaryFinder::DueQuestions(absl::Time* next) {
  std::vector<Question> due;
  const absl::Time now = MonotonicNow();
  const auto take = [&](const std::shared_ptr<Copy>& copy, absl::Duration patience) {
    if (copy->next > now) {
      *next = std::min(*next, copy->next);
      return;
    }
    copy->question = copy->last_question = ++questions_;
    Question& question = due.emplace_back();
    question.copy = copy;
    question.number = copy->question;
    if (patience > absl::ZeroDuration()) {
      question.request.set_wait_version(placement_.version());
      question.request.set_wait_ms(static_cast<uint32_t>(absl::ToInt64Milliseconds(patience)));
    }
  };
  if (suspect_) {
    for (const std::shared_ptr<Copy>& copy : copies_) {
      if (copy->question > suspected_at_) continue;
      // The first answers come at once. Then the primary is to say whether it serves now, the others when
      // something changes.
      const bool at_once = copy->address == primary_ || copy->last_question <= suspected_at_;
      take(copy, at_once ? absl::ZeroDuration() : kSuspectPatience);
    }
    return due;
  }
  const Copy* const follower = WatchedFollower();
  for (const std::shared_ptr<Copy>& copy : copies_) {
    if (copy->question != 0) continue;
    if (copy->address == primary_ || copy.get() == follower) take(copy, kPatience);
  }
  return due;
}

void PrimaryFinder::Ask(Question question) {
  Copy& copy = *question.copy;
  if (copy.channel == nullptr) {
    absl::StatusOr<std::unique_ptr<rpc::Channel>> channel = options_.open(copy.address);
    if (!channel.ok()) {
      OnAnswer(question.copy, question.number, channel.status());
      return;
    }
    copy.channel = *std::move(channel);
  }
  copy.channel->CallAsync(kGetPlacement, Bytes(question.request.SerializeAsString()),
                          {.timeout = absl::Milliseconds(question.request.wait_ms()) + kGrace},
                          [this, asked = question.copy, number = question.number](
                              absl::StatusOr<Bytes> answer) { OnAnswer(asked, number, std::move(answer)); });
}

void PrimaryFinder::OnAnswer(const std::shared_ptr<Copy>& copy, uint64_t number,
                             absl::StatusOr<Bytes> answer) {
  v1::ReplicaStatus status;
  absl::Status result = answer.status();
  if (result.ok() && !status.ParseFromString(answer->Flatten())) {
    result = absl::DataLossError("the answer does not parse");
  }
  if (result.ok() && status.shard() != options_.shard) {
    result = absl::FailedPreconditionError(
        absl::StrCat("is a copy of shard ", status.shard(), ", expected shard ", options_.shard));
  }
  absl::MutexLock lock(&mutex_);
  const bool current = copy->question == number;
  if (current) copy->question = 0;
  const absl::Time now = MonotonicNow();
  if (result.ok()) {
    copy->last_answer = Describe(status);
    for (const v1::ReplicaStatus::Link& link : status.links()) AddCopy(link.replica().address());
    const uint64_t version = placement_.version();
    Learn(status.placement());
    ForgetOldCopies();
    // Calls may go on at the primary if it says so after the suspicion.
    if (suspect_ && number > suspected_at_ && copy->address == primary_ && status.serving() &&
        status.role() == v1::REPLICA_ROLE_PRIMARY) {
      suspect_ = false;
      confirmed_ = true;
    }
    if (current) {
      copy->failures = 0;
      const bool changed = placement_.version() != version;
      copy->next = now + (suspect_ || changed ? kFirstPause : kCalmPause);
      if (copy->address != primary_) ++watched_;
    }
  } else if (current) {
    copy->last_answer = std::string(result.message());
    ++copy->failures;
    if (suspect_) {
      copy->next = now + Pause(kFirstPause, kLongestPause, copy->failures);
    } else {
      copy->next = now + Pause(kCalmPause, kLongestCalmPause, copy->failures);
      if (copy->address != primary_) ++watched_;
      // A process answers within the patience of the question, so one that does not is dead, stopped or cut
      // off.
      if (copy->address == primary_ && (absl::IsUnavailable(result) || absl::IsDeadlineExceeded(result))) {
        SuspectLocked();
      }
    }
  }
  look_ = true;
  changed_.SignalAll();
}

void PrimaryFinder::AddCopy(const std::string& address) {
  if (address.empty()) return;
  const auto found = std::find_if(copies_.begin(), copies_.end(),
                                  [&](const auto& copy) { return copy->address == address; });
  if (found == copies_.end()) {
    copies_.insert(copies_.begin(), std::make_shared<Copy>(address));
  } else {
    std::rotate(copies_.begin(), found, found + 1);
  }
}

void PrimaryFinder::ForgetOldCopies() {
  const size_t kept = kOldCopies + 1 + static_cast<size_t>(placement_.in_sync_size());
  const auto named = [this](const Copy& copy) ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return copy.address == primary_ ||
           std::any_of(placement_.in_sync().begin(), placement_.in_sync().end(),
                       [&](const v1::Replica& follower) { return follower.address() == copy.address; });
  };
  for (size_t i = copies_.size(); i-- > 0 && copies_.size() > kept;) {
    if (named(*copies_[i])) continue;
    forgotten_.push_back(std::move(copies_[i]));
    copies_.erase(copies_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

void PrimaryFinder::Learn(const v1::ShardPlacement& placement) {
  if (placement.version() <= placement_.version() || placement.primary().address().empty()) return;
  // Before the first document the primary is known by its address only.
  const bool moved = placement.primary().address() != primary_ ||
                     (placement_.version() > 0 && placement.primary().id() != placement_.primary().id());
  placement_ = placement;
  learned_ = true;
  primary_ = placement.primary().address();
  for (const v1::Replica& replica : placement.in_sync()) AddCopy(replica.address());
  AddCopy(primary_);
  ForgetOldCopies();
  if (moved) {
    moved_ = true;
    suspect_ = false;
    for (const std::shared_ptr<Copy>& copy : copies_) {
      copy->next = absl::InfinitePast();
      copy->failures = 0;
    }
  }
  look_ = true;
  changed_.SignalAll();
}

void PrimaryFinder::RunLocator() {
  absl::MutexLock lock(&mutex_);
  const auto sought = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return suspect_ || stop_; };
  const auto over = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return !suspect_ || stop_; };
  absl::Duration pause = kBeforeStore;
  while (true) {
    mutex_.Await(absl::Condition(&sought));
    if (stop_) return;
    if (tandem::AwaitFor(&mutex_, absl::Condition(&over), pause)) {
      pause = kBeforeStore;
      continue;
    }
    mutex_.Unlock();
    const absl::StatusOr<v1::ShardPlacement> placement = options_.locate(kStoreTimeout);
    mutex_.Lock();
    pause = kBetweenStore;
    if (!placement.ok()) {
      store_said_ = std::string(placement.status().message());
      continue;
    }
    store_said_ = placement->version() == 0
                      ? "has no document of the shard"
                      : absl::StrCat("version ", placement->version(), " names the primary ",
                                     placement->primary().address());
    Learn(*placement);
  }
}

}  // namespace tandem::ps
