// SPDX-License-Identifier: Apache-2.0
// tandem top: shows a job's servers and tables, and refreshes the picture.

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/status.h"
#include "cli/commands/commands.h"
#include "cli/commands/job_flags.h"
#include "cli/monitor/activity.h"
#include "cli/monitor/find_job.h"
#include "cli/monitor/screen.h"
#include "cli/monitor/snapshot.h"
#include "cli/monitor/terminal.h"

namespace tandem::cli {
namespace {

struct TopFlags {
  JobFlags job;
  double interval_seconds = 1;
  int hottest = 5;
  int count = 0;  // the number of refreshes; 0: no limit
  bool once = false;
  bool json = false;
};

const char* SortName(SortBy sort) {
  constexpr const char* kNames[kNumSorts] = {"name",   "rows",   "bytes",   "pulls",
                                             "pushes", "rows/s", "pull p99"};
  return kNames[static_cast<int>(sort)];
}

class Top {
 public:
  Top(const TopFlags& flags, std::unique_ptr<ServerSet> servers)
      : flags_(flags), servers_(std::move(servers)) {}

  absl::Status Run() {
    const bool live = !flags_.once && !flags_.json && ::isatty(STDOUT_FILENO) == 1;
    if (live) {
      TANDEM_ASSIGN_OR_RETURN(terminal_, Terminal::TakeOver());
      options_.colours = true;
    } else {
      ::signal(SIGPIPE, SIG_DFL);  // `tandem top | head` ends with head
    }
    const int count = flags_.once ? 1 : flags_.count;
    bool answered = false;
    absl::Time next = MonotonicNow();
    for (int i = 0; count == 0 || i < count; ++i) {
      if (i > 0 && !WaitUntil(next)) break;
      next = std::max(MonotonicNow(), next + absl::Seconds(flags_.interval_seconds));
      Take();
      answered = answered || now_->AnyCompleted();
      Show();
    }
    terminal_.reset();
    if (answered) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat("no server answered; server 0 at ", servers_->address(0), ": ",
                                               now_->servers[0].status.message()));
  }

 private:
  void Take() {
    // A server that hangs must not delay the refresh of the others.
    const double patience =
        flags_.once ? flags_.job.timeout_seconds
                    : std::min(flags_.job.timeout_seconds, std::max(1.0, flags_.interval_seconds));
    if (now_.has_value()) FollowRestarts(absl::Seconds(patience));
    before_ = std::move(now_);
    now_ = servers_->Take(static_cast<size_t>(flags_.hottest), absl::Seconds(patience));
  }

  // A restarted server listens at another address, which the job's store has.
  void FollowRestarts(absl::Duration patience) {
    const bool all = std::all_of(now_->servers.begin(), now_->servers.end(),
                                 [](const ServerSnapshot& server) { return server.status.ok(); });
    if (all || !flags_.job.servers.empty()) return;
    JobFlags quickly = flags_.job;
    quickly.timeout_seconds = absl::ToDoubleSeconds(patience);
    const absl::StatusOr<std::vector<std::string>> addresses = FindServers(quickly);
    if (addresses.ok()) servers_->Follow(*addresses);
  }

  void Show() {
    const Snapshot* const before = before_.has_value() ? &*before_ : nullptr;
    if (flags_.json) {
      std::printf("%s\n", SnapshotToJson(*now_, before).c_str());
    } else {
      if (terminal_ != nullptr) options_.columns = std::max<size_t>(40, terminal_->columns());
      std::vector<std::string> lines = DrawSnapshot(*now_, before, options_);
      std::string title =
          absl::StrCat("tandem top  ", absl::FormatTime("%H:%M:%S", now_->time, absl::LocalTimeZone()));
      if (terminal_ != nullptr) {
        absl::StrAppend(&title, "  by ", SortName(options_.sort), "  (q quits, <- -> sort, r reverses)");
      }
      lines.insert(lines.begin(), title.substr(0, options_.columns));
      if (terminal_ != nullptr) return terminal_->Draw(lines);
      for (const std::string& line : lines) std::printf("%s\n", line.c_str());
      if (!flags_.once) std::printf("\n");
    }
    std::fflush(stdout);
  }

  // Blocks until `next`, of MonotonicNow(), and handles the keys that are pressed. Returns false if the user
  // wants to stop.
  bool WaitUntil(absl::Time next) {
    if (terminal_ == nullptr) {
      absl::SleepFor(next - MonotonicNow());
      return true;
    }
    while (true) {
      const Key key = terminal_->WaitForKey(next);
      const int sort = static_cast<int>(options_.sort);
      switch (key) {
        case Key::kNone:
          return true;
        case Key::kQuit:
          return false;
        case Key::kLeft:
          options_.sort = static_cast<SortBy>((sort + kNumSorts - 1) % kNumSorts);
          break;
        case Key::kRight:
          options_.sort = static_cast<SortBy>((sort + 1) % kNumSorts);
          break;
        case Key::kReverse:
          options_.reversed = !options_.reversed;
          break;
        case Key::kOther:
          break;
      }
      Show();
    }
  }

  const TopFlags flags_;
  const std::unique_ptr<ServerSet> servers_;
  std::unique_ptr<Terminal> terminal_;
  ScreenOptions options_;
  std::optional<Snapshot> before_, now_;
};

absl::Status Run(const TopFlags& flags) {
  TANDEM_ASSIGN_OR_RETURN(std::vector<std::string> addresses, FindServers(flags.job));
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<ServerSet> servers, ServerSet::Connect(std::move(addresses)));
  return Top(flags, std::move(servers)).Run();
}

}  // namespace

void AddTop(CLI::App& app, CommandContext* context) {
  auto flags = std::make_shared<TopFlags>();
  CLI::App* top = app.add_subcommand("top", "A job's parameter servers and tables, live");
  top->footer(
      "Rates, and the times of calls, are of the last interval; in the first picture, of the time that the "
      "servers have\n"
      "been up. Staleness is of all pushes: mean, largest, and what the table's mode allows. LEFT: pushes "
      "left out for\n"
      "their staleness (gba). CACHE%: rows asked for that the workers' copies served. KEPT: acknowledged "
      "pushes that\n"
      "wait for others. PARKED: calls that wait for other workers.");
  AddServersFlags(top, &flags->job);
  top->add_option("--interval", flags->interval_seconds, "Seconds between refreshes")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  top->add_option("--hottest", flags->hottest, "How many of each table's most pulled ids to name")
      ->check(CLI::Range(0, 100))
      ->capture_default_str();
  top->add_option("--count", flags->count, "Stop after so many refreshes; 0: when told to")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  top->add_flag("--once", flags->once, "Print one picture and stop");
  top->add_flag("--json", flags->json, "Print one JSON object a refresh");
  top->callback([flags, context] { context->exit_code = Report("top", Run(*flags)); });
}

}  // namespace tandem::cli
