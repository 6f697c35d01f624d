// SPDX-License-Identifier: Apache-2.0
#include "collectives/diagnostics/watchdog.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/logging.h"

namespace tandem::collectives {
namespace {

constexpr int kTimeoutExitCode = 124;  // as timeout(1) and `tandem run --timeout`

void EndProcess(const std::string& message) {
  std::fprintf(stderr, "%s\n", message.c_str());
  std::fflush(stderr);
  std::_Exit(kTimeoutExitCode);  // other threads hang: destructors would not return
}

std::string Rounded(absl::Duration duration) {
  const absl::Duration unit = duration < absl::Seconds(10) ? absl::Milliseconds(1) : absl::Milliseconds(100);
  return absl::FormatDuration(absl::Trunc(duration, unit));
}

}  // namespace

Watchdog::Options Watchdog::OptionsFromEnv() {
  Options options;
  if (const char* text = std::getenv("TANDEM_WATCHDOG"); text != nullptr && *text != '\0') {
    const std::string word = absl::AsciiStrToLower(text);
    options.enabled = word != "off";
    options.kill = word == "kill";
    if (word != "off" && word != "kill" && word != "abort") {
      LogWarning(absl::StrCat("TANDEM_WATCHDOG='", text, "' is not one of off, abort, kill; abort is taken"));
    }
  }
  if (const char* text = std::getenv("TANDEM_WATCHDOG_GRACE"); text != nullptr && *text != '\0') {
    absl::Duration grace;
    if (absl::ParseDuration(text, &grace) && grace >= absl::ZeroDuration()) {
      options.grace = grace;
    } else {
      LogWarning(absl::StrCat("TANDEM_WATCHDOG_GRACE='", text, "' is no duration such as 5s; ",
                              absl::FormatDuration(options.grace), " is taken"));
    }
  }
  return options;
}

Watchdog::Watchdog(std::shared_ptr<FlightRecorder> recorder, Options options)
    : recorder_(std::move(recorder)), options_(std::move(options)), last_check_(options_.clock->Now()) {
  if (options_.enabled) thread_ = std::thread([this] { Run(); });
}

Watchdog::~Watchdog() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void Watchdog::AddGroup(uint32_t group, AbortHook hook) {
  absl::MutexLock lock(&mutex_);
  hooks_[group] = std::make_shared<const AbortHook>(std::move(hook));
}

void Watchdog::RemoveGroup(uint32_t group) {
  absl::MutexLock lock(&mutex_);
  hooks_.erase(group);
  const auto idle = [this, group] {
    mutex_.AssertReaderHeld();
    return running_hook_ != group;
  };
  mutex_.Await(absl::Condition(&idle));
}

void Watchdog::Run() {
  for (;;) {
    {
      absl::MutexLock lock(&mutex_);
      if (options_.clock->AwaitUntil(&mutex_, absl::Condition(&stop_), last_check_ + options_.interval))
        return;
    }
    const absl::Time now = options_.clock->Now();
    const absl::Duration elapsed = now - last_check_, late = elapsed - options_.interval;
    last_check_ = now;
    if (late > options_.starved) {
      LogWarning(absl::StrCat("the watchdog of the process groups could not run for ", Rounded(late),
                              ": the process was stopped, the machine is overloaded, or its clock was set; "
                              "time-outs begin anew"));
    }
    CheckOperations(std::clamp(elapsed, absl::ZeroDuration(), 2 * options_.interval));
  }
}

void Watchdog::CheckOperations(absl::Duration elapsed) {
  const std::vector<FlightRecorder::InFlight> running = recorder_->Running();
  std::set<uint32_t> busy;  // groups in which an operation runs
  for (const FlightRecorder::InFlight& operation : running) {
    if (operation.started) busy.insert(operation.group);
  }
  std::map<uint64_t, Seen> seen;
  for (const FlightRecorder::InFlight& operation : running) {
    // An operation on a GPU may wait for the caller's own kernels, for any time.
    const bool counts = operation.started || (!operation.on_device && busy.count(operation.group) == 0);
    Seen& now = seen[operation.id];
    if (const auto before = seen_.find(operation.id); before != seen_.end()) {
      now = before->second;
      if (counts) now.age += elapsed;
    } else if (counts) {
      now.age = std::min(elapsed, operation.started ? operation.running : operation.queued);
    }
    if (!now.reported && operation.timeout != absl::InfiniteDuration() &&
        now.age > operation.timeout + options_.grace) {
      now.reported = true;
      Report(operation, now.age);
    }
  }
  seen_ = std::move(seen);
}

void Watchdog::Report(const FlightRecorder::InFlight& operation, absl::Duration age) {
  const std::string what =
      absl::StrCat(operation.description, " of group '", operation.group_name, "' has ",
                   operation.started ? "run" : "waited in the queue", " for ", Rounded(age),
                   ", longer than its time-out of ", absl::FormatDuration(operation.timeout), " and ",
                   absl::FormatDuration(options_.grace), " of grace");
  recorder_->Dump(absl::StrCat("watchdog: ", what)).IgnoreError();  // logged by the recorder
  if (options_.kill) {
    const std::string message =
        absl::StrCat("tandem watchdog: ", what, "; the process is ended, as TANDEM_WATCHDOG=kill asks");
    options_.end_process ? options_.end_process(message) : EndProcess(message);
    return;
  }
  std::shared_ptr<const AbortHook> hook;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = hooks_.find(operation.group);
    if (found != hooks_.end()) {
      hook = found->second;
      running_hook_ = operation.group;
    }
  }
  LogError(absl::StrCat("watchdog: ", what, hook != nullptr ? "; the group is aborted" : ""));
  if (hook == nullptr) return;
  (*hook)(absl::DeadlineExceededError(absl::StrCat(what, "; the watchdog has aborted the group")));
  absl::MutexLock lock(&mutex_);
  running_hook_ = -1;
}

}  // namespace tandem::collectives
