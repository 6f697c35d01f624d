// SPDX-License-Identifier: Apache-2.0
#include "rpc/remote/directory.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/timed_wait.h"

namespace tandem::rpc::remote {
namespace {
constexpr size_t kNamesInMessages = 16;
}  // namespace

std::string NamesOf(const Directory::Members& members) {
  if (members.empty()) return "nobody";
  std::string text;
  size_t told = 0;
  for (const auto& [name, member] : members) {
    if (told++ == kNamesInMessages) {
      absl::StrAppend(&text, " and ", members.size() - kNamesInMessages, " more");
      break;
    }
    absl::StrAppend(&text, told == 1 ? "" : ", ", name);
  }
  return text;
}

absl::StatusOr<Member> Directory::Lookup(absl::string_view name, absl::Duration timeout) {
  const std::string key(name);
  absl::MutexLock lock(&mutex_);
  const auto there = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return members_.count(key) > 0; };
  if (AwaitFor(&mutex_, absl::Condition(&there), timeout)) return members_[key];
  return absl::DeadlineExceededError(absl::StrCat(
      name, " has not registered within ", absl::FormatDuration(timeout), "; there: ", NamesOf(members_)));
}

Directory::Members Directory::List() const {
  absl::MutexLock lock(&mutex_);
  return members_;
}

std::optional<Member> Directory::Find(absl::string_view name) const {
  absl::MutexLock lock(&mutex_);
  const auto found = members_.find(std::string(name));
  return found == members_.end() ? std::nullopt : std::optional<Member>(found->second);
}

uint64_t Directory::Watch(Watcher watcher) {
  absl::MutexLock telling(&watcher_call_mutex_);
  auto shared = std::make_shared<const Watcher>(std::move(watcher));
  Members members;
  uint64_t id;
  {
    absl::MutexLock lock(&mutex_);
    id = ++last_watch_;
    watchers_[id] = shared;
    members = members_;
  }
  (*shared)(members);
  return id;
}

void Directory::Unwatch(uint64_t id) {
  absl::MutexLock telling(&watcher_call_mutex_);
  absl::MutexLock lock(&mutex_);
  watchers_.erase(id);
}

void Directory::Publish(Members members) {
  absl::MutexLock telling(&watcher_call_mutex_);
  std::vector<std::shared_ptr<const Watcher>> watchers;
  {
    absl::MutexLock lock(&mutex_);
    if (members_ == members) return;
    members_ = members;
    for (const auto& [id, watcher] : watchers_) watchers.push_back(watcher);
  }
  for (const auto& watcher : watchers) (*watcher)(members);
}

absl::Status MemoryDirectory::Register(const Member& member) {
  absl::MutexLock lock(&mutex_);
  const auto [found, added] = members_.emplace(member.name, member);
  if (!added) {
    return absl::AlreadyExistsError(
        absl::StrCat("there is a living ", member.name, " at ", found->second.address, ": names are unique"));
  }
  Publish(members_);
  return absl::OkStatus();
}

absl::Status MemoryDirectory::Unregister(const Member& member) {
  absl::MutexLock lock(&mutex_);
  const auto found = members_.find(member.name);
  if (found == members_.end() || found->second.incarnation != member.incarnation) return absl::OkStatus();
  members_.erase(found);
  Publish(members_);
  return absl::OkStatus();
}

void MemoryDirectory::Forget(absl::string_view name) {
  absl::MutexLock lock(&mutex_);
  members_.erase(std::string(name));
  Publish(members_);
}

}  // namespace tandem::rpc::remote
