// SPDX-License-Identifier: Apache-2.0
#include "cluster/rendezvous/store_directory.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/logging.h"
#include "base/status.h"
#include "base/timed_wait.h"

namespace tandem::cluster {
namespace {

using rpc::remote::Member;

constexpr int kBeatsPerLease = 4;
constexpr int64_t kChangesKept = 256;

std::string RecordOf(const Member& member, int64_t beat) {
  return absl::StrCat(member.incarnation, " ", beat, " ", member.address);
}

// Returns nullopt if the record is blank or malformed.
std::optional<Member> ParseRecord(const std::string& name, const std::string& record) {
  const std::vector<std::string> fields = absl::StrSplit(record, absl::MaxSplits(' ', 2));
  Member member{.name = name};
  int64_t beat;
  if (fields.size() != 3 || !absl::SimpleAtoi(fields[0], &member.incarnation) || member.incarnation == 0 ||
      !absl::SimpleAtoi(fields[1], &beat)) {
    return std::nullopt;
  }
  member.address = fields[2];
  return member;
}

}  // namespace

absl::StatusOr<std::unique_ptr<StoreDirectory>> StoreDirectory::Open(Store* store,
                                                                     const StoreDirectoryOptions& options) {
  if (options.lease < absl::Milliseconds(10)) {
    return absl::InvalidArgumentError("StoreDirectoryOptions::lease: at least 10ms");
  }
  std::unique_ptr<StoreDirectory> directory(new StoreDirectory(store, options));
  TANDEM_RETURN_IF_ERROR(directory->Refresh());
  directory->thread_ = std::thread([d = directory.get()] { d->Run(); });
  return directory;
}

StoreDirectory::~StoreDirectory() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  if (!thread_.joinable()) return;
  (void)Announce();  // ends the thread's wait
  thread_.join();
}

std::string StoreDirectory::KeyOf(const std::string& name) const {
  return absl::StrCat(options_.prefix, "/member/", name);
}

absl::Status StoreDirectory::Announce() {
  TANDEM_ASSIGN_OR_RETURN(const int64_t change, store_->Add(absl::StrCat(options_.prefix, "/changes"), 1));
  TANDEM_RETURN_IF_ERROR(store_->Set(absl::StrCat(options_.prefix, "/change/", change), ""));
  if (change > kChangesKept) {
    (void)store_->Delete(absl::StrCat(options_.prefix, "/change/", change - kChangesKept));
  }
  return absl::OkStatus();
}

absl::Status StoreDirectory::Register(const Member& member) {
  const std::string key = KeyOf(member.name);
  const std::string record = RecordOf(member, 0);
  std::string expected;
  absl::Time since = MonotonicNow();
  while (true) {
    TANDEM_ASSIGN_OR_RETURN(const std::string now, store_->CompareSet(key, expected, record));
    if (now == record) break;
    const std::optional<Member> other = ParseRecord(member.name, now);
    if (!expected.empty() && now != expected && other.has_value()) {
      return absl::AlreadyExistsError(
          absl::StrCat("there is a living ", member.name, " at ", other->address, ": names are unique"));
    }
    if (!other.has_value()) {
      expected = now;  // blank, or no record of ours
      continue;
    }
    // The record may belong to an incarnation that has ended: then it does not change.
    expected.clear();
    absl::SleepFor(options_.lease / kBeatsPerLease);
    TANDEM_ASSIGN_OR_RETURN(const std::string later, store_->Get(key, options_.lease));
    if (later != now && !later.empty()) {
      return absl::AlreadyExistsError(
          absl::StrCat("there is a living ", member.name, " at ", other->address, ": names are unique"));
    }
    if (later == now && MonotonicNow() - since >= options_.lease) expected = now;
  }
  {
    absl::MutexLock lock(&mutex_);
    registered_[member.name] = {member, 0, record};
  }
  const absl::Status announced = Announce();
  // The caller takes the member for absent then: nothing may keep it alive.
  if (!announced.ok()) (void)Unregister(member);
  return announced;
}

absl::Status StoreDirectory::Unregister(const Member& member) {
  std::string record;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = registered_.find(member.name);
    if (found == registered_.end() || found->second.member.incarnation != member.incarnation)
      return absl::OkStatus();
    record = found->second.record;
    registered_.erase(found);
  }
  // The thread may have incremented the counter once more.
  for (int i = 0; i < 2; ++i) {
    TANDEM_ASSIGN_OR_RETURN(const std::string now, store_->CompareSet(KeyOf(member.name), record, ""));
    if (now.empty()) break;
    const std::optional<Member> there = ParseRecord(member.name, now);
    if (!there.has_value() || there->incarnation != member.incarnation) break;
    record = now;
  }
  return Announce();
}

void StoreDirectory::Renew() {
  std::vector<RegisteredMember> own;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [name, each] : registered_) own.push_back(each);
  }
  for (RegisteredMember& each : own) {
    const std::string next = RecordOf(each.member, each.beat + 1);
    absl::StatusOr<std::string> now = store_->CompareSet(KeyOf(each.member.name), each.record, next);
    if (!now.ok()) continue;  // the store cannot be reached; the lease may last until it can
    if (*now != next && now->empty()) {
      {
        absl::MutexLock lock(&mutex_);
        if (registered_.count(each.member.name) == 0) continue;  // it was unregistered meanwhile
      }
      LogWarning(absl::StrCat(each.member.name, " was taken for dead after ",
                              absl::FormatDuration(options_.lease), " of silence, and registers again"));
      now = store_->CompareSet(KeyOf(each.member.name), "", next);
      if (now.ok() && *now == next) (void)Announce();
    }
    absl::MutexLock lock(&mutex_);
    const auto found = registered_.find(each.member.name);
    if (found == registered_.end() || found->second.member.incarnation != each.member.incarnation) continue;
    if (now.ok() && *now == next) {
      found->second.beat = each.beat + 1;
      found->second.record = next;
    } else if (now.ok()) {
      LogError(absl::StrCat(each.member.name, " is somebody else now: '", *now, "'"));
      registered_.erase(found);
    }
  }
}

absl::Status StoreDirectory::Refresh() {
  const std::string prefix = absl::StrCat(options_.prefix, "/member/");
  TANDEM_ASSIGN_OR_RETURN(const int64_t changes, store_->Add(absl::StrCat(options_.prefix, "/changes"), 0));
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> keys, store_->List(prefix));
  std::vector<std::string> records;
  if (!keys.empty()) {
    TANDEM_ASSIGN_OR_RETURN(records, store_->MultiGet(keys, options_.lease));
  }
  changes_ = changes;
  const absl::Time now = MonotonicNow();
  // After some time without the store it is unknown which members were silent.
  if (now - last_refresh_ > options_.lease) seen_.clear();
  last_refresh_ = now;
  Members members;
  for (size_t i = 0; i < keys.size(); ++i) {
    const std::string name = keys[i].substr(prefix.size());
    const std::optional<Member> member = ParseRecord(name, records[i]);
    if (!member.has_value()) {
      seen_.erase(keys[i]);
      continue;
    }
    Seen& seen = seen_[keys[i]];
    if (seen.record != records[i]) seen = {records[i], now};
    if (now - seen.since > options_.lease) {
      if (const auto blank = store_->CompareSet(keys[i], records[i], ""); blank.ok() && blank->empty())
        (void)Announce();
      continue;
    }
    members[name] = *member;
  }
  Publish(std::move(members));
  return absl::OkStatus();
}

void StoreDirectory::Run() {
  const absl::Duration pause = options_.lease / kBeatsPerLease;
  absl::Time next_beat = MonotonicNow();
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      if (stop_) return;
    }
    if (MonotonicNow() >= next_beat) {
      Renew();
      next_beat = MonotonicNow() + pause;
    }
    const absl::Status refreshed = Refresh();
    // Waits until a member joins or leaves, or until the next heartbeat is due.
    const absl::Status waited = refreshed.ok()
                                    ? store_
                                          ->Get(absl::StrCat(options_.prefix, "/change/", changes_ + 1),
                                                std::max(next_beat - MonotonicNow(), absl::Milliseconds(1)))
                                          .status()
                                    : refreshed;
    if (waited.ok() || absl::IsDeadlineExceeded(waited)) continue;
    absl::MutexLock lock(&mutex_);
    AwaitFor(&mutex_, absl::Condition(&stop_), pause);
  }
}

}  // namespace tandem::cluster
