// SPDX-License-Identifier: Apache-2.0
#include "base/wait_log.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/timed_wait.h"

namespace tandem {

namespace {

std::string WhatAndHowLong(const std::string& what, absl::Duration waited) {
  return absl::StrCat(what, " for ", absl::FormatDuration(absl::Trunc(waited, absl::Seconds(1))));
}

}  // namespace

std::string WaitText(const std::string& what, absl::Duration waited) {
  return absl::StrCat("has waited for ", WhatAndHowLong(what, waited));
}

WaitLog::WaitLog(absl::Duration every, std::function<void(const std::string&)> log)
    : every_(every), log_(std::move(log)), thread_([this] { Run(); }) {}

WaitLog::~WaitLog() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  thread_.join();
}

WaitLog::Wait WaitLog::Begin(std::string what) {
  const absl::Time now = MonotonicNow();
  absl::MutexLock lock(&mutex_);
  const uint64_t id = next_id_++;
  waits_.emplace(id, Waiting{.what = std::move(what), .since = now, .next = now + every_});
  return Wait(this, id);
}

void WaitLog::End(uint64_t id) {
  absl::MutexLock lock(&mutex_);
  waits_.erase(id);
}

std::string WaitLog::Longest() const {
  absl::MutexLock lock(&mutex_);
  const Waiting* longest = nullptr;
  for (const auto& [id, wait] : waits_) {
    if (longest == nullptr || wait.since < longest->since) longest = &wait;
  }
  return longest == nullptr ? "" : WhatAndHowLong(longest->what, MonotonicNow() - longest->since);
}

void WaitLog::Run() {
  for (;;) {
    std::vector<std::string> lines;
    {
      absl::MutexLock lock(&mutex_);
      // Short waits come and go without waking this thread.
      if (AwaitFor(&mutex_, absl::Condition(&stop_), every_ / 10)) return;
      const absl::Time now = MonotonicNow();
      for (auto& [id, wait] : waits_) {
        if (now < wait.next) continue;
        lines.push_back(WaitText(wait.what, now - wait.since));
        wait.next = now + every_;
      }
    }
    for (const std::string& line : lines) log_(line);
  }
}

}  // namespace tandem
