// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/train_seeds.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/json.h"
#include "base/logging.h"
#include "base/read_file.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "worker/job/path_expansion.h"

namespace tandem::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxSeeds = 1000;

// The exit code of a run that was asked to stop, as `tandem train` has it.
constexpr int kAskedToStop = 75;

// A signal handler reaches static objects only.
std::atomic<bool> seeds_stop{false};
std::atomic<pid_t> seeds_run{0};  // the process of the current run; 0: none

constexpr int kStopSignals[] = {SIGTERM, SIGINT};

// Passes SIGTERM and SIGINT on to the current run, which saves a checkpoint and ends. Further runs are not
// started. A Ctrl-C goes to the run as well, since both are in the terminal's foreground process group.
void StopSeedsOnSignals() {
  struct sigaction action = {};
  action.sa_sigaction = [](int signal, siginfo_t* info, void*) {
    seeds_stop = true;
    const pid_t run = seeds_run;
    if (run > 0 && info->si_code != SI_KERNEL) ::kill(run, signal);
  };
  action.sa_flags = SA_RESTART | SA_SIGINFO;
  for (const int signal : kStopSignals) ::sigaction(signal, &action, nullptr);
}

// Blocks these signals while it exists.
class StopSignalsBlocked {
 public:
  StopSignalsBlocked() {
    sigset_t blocked;
    ::sigemptyset(&blocked);
    for (const int signal : kStopSignals) ::sigaddset(&blocked, signal);
    ::sigprocmask(SIG_BLOCK, &blocked, &before_);
  }
  ~StopSignalsBlocked() { Restore(); }
  void Restore() { ::sigprocmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

// Runs `args` and returns the exit code: 128 + N after signal N.
absl::StatusOr<int> RunToEnd(const std::string& program, const std::vector<std::string>& args) {
  std::vector<char*> pointers;
  for (const std::string& arg : args) pointers.push_back(const_cast<char*>(arg.c_str()));
  pointers.push_back(nullptr);
  std::fflush(nullptr);
  const pid_t parent = ::getpid();
  pid_t pid;
  {
    StopSignalsBlocked blocked;
    if (seeds_stop) return kAskedToStop;
    pid = ::fork();
    if (pid < 0) return absl::ErrnoToStatus(errno, "starting a run");
    if (pid == 0) {
      // The run ends with this process, however that ends.
      ::prctl(PR_SET_PDEATHSIG, SIGTERM);
      if (::getppid() != parent) ::_exit(1);
      for (const int signal : kStopSignals) ::signal(signal, SIG_DFL);
      blocked.Restore();
      ::execv(program.c_str(), pointers.data());
      ::_exit(127);
    }
    seeds_run = pid;
  }
  siginfo_t ended = {};
  while (::waitid(P_PID, static_cast<id_t>(pid), &ended, WEXITED | WNOWAIT) < 0 && errno == EINTR) {
  }
  // Once waitpid has returned, the kernel may give the number to another process.
  StopSignalsBlocked blocked;
  seeds_run = 0;
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) return absl::ErrnoToStatus(errno, "waiting for a run");
  }
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

std::string DirectoryOf(const SeedRuns& runs, uint64_t seed) {
  return absl::StrCat(runs.checkpoint_dir, "/seed-", seed);
}

std::vector<std::string> CommandOf(const SeedRuns& runs, uint64_t seed, bool first,
                                   const std::string& program, const std::string& report) {
  std::vector<std::string> args = {"tandem"};
  if (runs.servers > 0) {
    args.insert(args.end(), {"run", "--ps", absl::StrCat(runs.servers), "--workers",
                             absl::StrCat(runs.workers), "--", program});
  }
  args.insert(args.end(), {"train", runs.job_file});
  for (const std::string& set : runs.overrides) args.insert(args.end(), {"--set", set});
  const std::string directory = worker::EscapePath(DirectoryOf(runs, seed));
  args.insert(args.end(),
              {"--set", absl::StrCat("train.seed=", seed), "--set",
               absl::StrCat("checkpoint.dir='", absl::StrReplaceAll(directory, {{"'", "''"}}), "'"),
               "--report", report});
  if (!runs.predictions.empty()) {
    args.insert(args.end(), {"--predictions", absl::StrCat(runs.predictions, ".seed-", seed)});
  }
  if (!runs.baselines || !first) args.push_back("--no-baselines");
  args.insert(args.end(), runs.more_flags.begin(), runs.more_flags.end());
  return args;
}

Json ToJson(const Spread& spread) { return {{"mean", spread.mean}, {"deviation", spread.deviation}}; }

// Prints the table of all runs and returns it as JSON.
Json Summarize(const SeedRuns& runs, std::vector<Json> reports) {
  std::vector<double> aucs, losses;
  std::printf("\n%s: %zu %s\n  %-10s %10s %10s %12s %14s\n", runs.job_name.c_str(), reports.size(),
              reports.size() == 1 ? "seed" : "seeds", "seed", "test AUC", "logloss", "best epoch",
              "samples/s");
  Json json = {{"job", runs.job_name}, {"job_file", runs.job_file}};
  for (const Json& report : reports) {
    const Json& test = report.at("test");
    const auto number = [](const Json& value) {
      return value.is_number() ? value.get<double>() : std::nan("");
    };
    aucs.push_back(number(test.at("auc")));
    losses.push_back(number(test.at("logloss")));
    std::printf("  %-10s %10.4f %10.4f %12d %14.0f\n",
                absl::StrCat(report.at("seed").get<uint64_t>()).c_str(), aucs.back(), losses.back(),
                report.at("best_epoch").get<int>(), number(report.at("samples_per_s")));
    json["seeds"].push_back(report.at("seed"));
  }
  const Spread auc = SpreadOf(aucs), loss = SpreadOf(losses);
  std::printf("  %-10s %10.4f %10.4f\n  %-10s %10.4f %10.4f\n", "mean", auc.mean, loss.mean, "deviation",
              auc.deviation, loss.deviation);
  std::fflush(stdout);
  json["test"] = {{"auc", ToJson(auc)}, {"logloss", ToJson(loss)}};
  json["runs"] = std::move(reports);
  return json;
}

absl::StatusOr<int> Train(const SeedRuns& runs) {
  std::error_code error;
  const std::string program = std::filesystem::read_symlink("/proc/self/exe", error).string();
  if (error) return absl::InternalError(absl::StrCat("this program cannot be found: ", error.message()));
  StopSeedsOnSignals();
  std::vector<Json> reports;
  int exit_code = 0;
  for (const uint64_t seed : runs.seeds) {
    LogInfo(absl::StrCat("seed ", seed, " (", reports.size() + 1, " of ", runs.seeds.size(), ")"));
    // The run prints this path, so the file stays.
    const std::string file = absl::StrCat(DirectoryOf(runs, seed), "/report.json");
    std::filesystem::create_directories(DirectoryOf(runs, seed), error);
    if (error) {
      return absl::InvalidArgumentError(absl::StrCat("cannot make the directory '", DirectoryOf(runs, seed),
                                                     "' of seed ", seed, ": ", error.message()));
    }
    TANDEM_ASSIGN_OR_RETURN(exit_code,
                            RunToEnd(program, CommandOf(runs, seed, reports.empty(), program, file)));
    if (exit_code != 0 && seeds_stop) {
      LogInfo(absl::StrCat("stopped on request at seed ", seed, ", with exit code ", exit_code,
                           "; continue with --resume auto"));
      break;
    }
    if (exit_code != 0) {
      LogError(absl::StrCat("the run with seed ", seed, " failed with exit code ", exit_code,
                            "; its output above says why. Further seeds are not trained"));
      break;
    }
    TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadFile(file));
    Json report = ParseOrderedJson(text);
    if (report.is_discarded() || !report.contains("test")) {
      return absl::InternalError(absl::StrCat("the report of seed ", seed, " is not complete"));
    }
    reports.push_back(std::move(report));
  }
  if (reports.empty()) return exit_code;
  const Json summary = Summarize(runs, std::move(reports));
  if (runs.report.empty()) return exit_code;
  std::ofstream out(runs.report, std::ios::trunc);
  out << summary.dump(2) << "\n";
  out.close();
  if (!out) return absl::UnavailableError(absl::StrCat("cannot write the report to '", runs.report, "'"));
  std::printf("  %-10s %s\n", "report", runs.report.c_str());
  return exit_code;
}

}  // namespace

absl::StatusOr<std::vector<uint64_t>> ParseSeeds(absl::string_view text) {
  const auto wrong = [&](absl::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat("--seeds is '", text, "', ", why, "; write 1-5, or a list such as 1,3,10-12"));
  };
  std::vector<uint64_t> seeds;
  std::set<uint64_t> seen;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const std::pair<absl::string_view, absl::string_view> ends =
        absl::StrSplit(part, absl::MaxSplits('-', 1));
    uint64_t first = 0, last = 0;
    // Seeds of a job file are signed.
    constexpr uint64_t kMost = uint64_t{1} << 62;
    if (!absl::SimpleAtoi(ends.first, &first) || first > kMost)
      return wrong("which is no list of whole numbers");
    last = first;
    if (absl::StrContains(part, '-') && (!absl::SimpleAtoi(ends.second, &last) || last > kMost)) {
      return wrong("which is no list of whole numbers");
    }
    if (last < first) return wrong("in which a range ends before it begins");
    if (last - first >= kMaxSeeds || seeds.size() + (last - first) >= kMaxSeeds) {
      return wrong(absl::StrCat("which has more than ", kMaxSeeds, " seeds"));
    }
    for (uint64_t seed = first; seed <= last; ++seed) {
      if (!seen.insert(seed).second) return wrong(absl::StrCat("which has the seed ", seed, " twice"));
      seeds.push_back(seed);
    }
  }
  return seeds;
}

Spread SpreadOf(const std::vector<double>& values) {
  Spread spread;
  const double n = static_cast<double>(values.size());
  for (const double value : values) spread.mean += value / n;
  if (values.size() < 2) return spread;
  for (const double value : values)
    spread.deviation += (value - spread.mean) * (value - spread.mean) / (n - 1);
  spread.deviation = std::sqrt(spread.deviation);
  return spread;
}

int TrainSeeds(const SeedRuns& runs) {
  const absl::StatusOr<int> exit_code = Train(runs);
  if (exit_code.ok()) return *exit_code;
  LogError(exit_code.status().message());
  return 1;
}

}  // namespace tandem::cli
