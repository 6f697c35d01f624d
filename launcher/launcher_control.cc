// SPDX-License-Identifier: Apache-2.0
#include "launcher/launcher_control.h"

#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "base/status.h"

namespace tandem::launcher {

LauncherControl::~LauncherControl() {
  uint64_t wait;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    wait = wait_;
  }
  const bool cancelled = wait != 0 && store_->CancelPop(wait);
  absl::MutexLock lock(&mutex_);
  if (cancelled) wait_ = 0;
  const auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return wait_ == 0 && running_ == 0; };
  mutex_.Await(absl::Condition(&idle));
}

absl::Status LauncherControl::Announce(const std::map<std::string, collectives::Assignment>& places) {
  std::vector<std::string> keys, values;
  int64_t number = 0;
  for (const auto& [process, assignment] : places) {
    keys.push_back(collectives::AssignmentKey(assignment.number, process));
    values.push_back(assignment.ToText());
    number = assignment.number;
  }
  TANDEM_RETURN_IF_ERROR(store_->MultiSet(keys, values));
  // No process reads assignments that are two rounds old.
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> old,
                          store_->List(collectives::AssignmentKey(number - 2, "")));
  for (const std::string& key : old) TANDEM_RETURN_IF_ERROR(store_->Delete(key).status());
  return absl::OkStatus();
}

absl::Status LauncherControl::RoundOver(int64_t number, absl::string_view reason) {
  return store_->Set(collectives::OverKey(number), reason);
}

absl::Status LauncherControl::Close(absl::string_view reason) {
  return store_->Set(collectives::kClosedKey, reason);
}

void LauncherControl::OnPeerFailure(std::function<void(PeerFailure)> on_peer_failure) {
  {
    absl::MutexLock lock(&mutex_);
    on_peer_failure_ = std::move(on_peer_failure);
  }
  Listen();
}

void LauncherControl::Listen() {
  while (true) {
    std::string item;
    {
      absl::MutexLock lock(&mutex_);
      if (stopping_) return;
      uint64_t id = 0;
      // Runs on the thread that pushes. That thread first waits for mutex_, which this one holds until wait_
      // is set.
      const auto ready = [this](std::string text) {
        bool stopping;
        {
          absl::MutexLock lock(&mutex_);
          wait_ = 0;
          ++running_;
          stopping = stopping_;
        }
        if (!stopping) {
          Tell(text);
          Listen();
        }
        absl::MutexLock lock(&mutex_);
        --running_;
      };
      absl::StatusOr<absl::optional<std::string>> at_once =
          store_->StartPop(collectives::kPeerFailureQueue, {nullptr, ready, {}}, &id);
      TANDEM_CHECK(at_once.ok());  // a launcher's store has no journal
      if (!at_once->has_value()) {
        wait_ = id;
        return;
      }
      item = **std::move(at_once);
    }
    Tell(item);
  }
}

void LauncherControl::Tell(const std::string& item) {
  const std::vector<std::string> parts = absl::StrSplit(item, absl::MaxSplits('\n', 2));
  PeerFailure failure;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[0], &failure.number)) return;
  failure.process = parts[1];
  failure.reason = parts[2];
  std::function<void(PeerFailure)> tell;
  {
    absl::MutexLock lock(&mutex_);
    tell = on_peer_failure_;
  }
  tell(std::move(failure));
}

}  // namespace tandem::launcher
