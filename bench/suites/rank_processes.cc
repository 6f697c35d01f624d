// SPDX-License-Identifier: Apache-2.0
#include "bench/suites/rank_processes.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <memory>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"
#include "cluster/store/store_server.h"
#include "launcher/process/console.h"
#include "launcher/process/spawn.h"

extern char** environ;

namespace tandem::bench {
namespace {

constexpr absl::Duration kGrace = absl::Seconds(5);
constexpr absl::string_view kOurs[] = {
    "RANK=",        "WORLD_SIZE=",   "LOCAL_RANK=", "MASTER_ADDR=", "MASTER_PORT=", "LOCAL_WORLD_SIZE=",
    "TANDEM_ROLE=", "TANDEM_STORE=", "ROLE_RANK="};

std::vector<std::string> RankEnvironment(int rank, int ranks, int store_port) {
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    bool replaced = false;
    for (const absl::string_view name : kOurs) replaced |= absl::StartsWith(*entry, name);
    if (!replaced) environment.emplace_back(*entry);
  }
  for (const std::string& entry :
       {absl::StrCat("RANK=", rank), absl::StrCat("LOCAL_RANK=", rank), absl::StrCat("WORLD_SIZE=", ranks),
        absl::StrCat("LOCAL_WORLD_SIZE=", ranks), absl::StrCat("TANDEM_STORE=127.0.0.1:", store_port)}) {
    environment.push_back(entry);
  }
  return environment;
}

// One rank's process. The destructor kills it if it still runs.
class RankProcess {
 public:
  RankProcess(int rank, std::string name, launcher::Spawned spawned, launcher::Console* console)
      : rank_(rank), name_(std::move(name)), process_(std::move(spawned)), console_(console) {}
  ~RankProcess() {
    if (!running_) return;
    ::kill(-process_.pid, SIGKILL);
    Reap();
  }

  bool done() const { return !running_ && !process_.out.valid() && !process_.err.valid(); }
  bool running() const { return running_; }
  int exit_code() const { return exit_code_; }  // valid once it has ended
  void Kill() const {
    if (running_) ::kill(-process_.pid, SIGKILL);
  }

  void ReportExit() {
    Line(exit_code_ > 128 ? absl::StrCat("was killed by signal ", exit_code_ - 128)
                          : absl::StrCat("failed with exit code ", exit_code_));
  }

  // Adds the descriptors to poll: stdout, stderr and the process; -1 where no more events come.
  void AddTo(std::vector<pollfd>* fds) const {
    fds->push_back({.fd = process_.out.get(), .events = POLLIN});
    fds->push_back({.fd = process_.err.get(), .events = POLLIN});
    fds->push_back({.fd = running_ ? process_.pidfd.get() : -1, .events = POLLIN});
  }
  // Handles events. `ready` points to the three entries that AddTo added.
  void Handle(const pollfd* ready) {
    if (ready[0].revents != 0) Read(&process_.out, rank_ == 0 ? nullptr : &lines_[0]);
    if (ready[1].revents != 0) Read(&process_.err, &lines_[1]);
    if (ready[2].revents != 0) Reap();
  }

 private:
  // Reads output. `lines` holds the incomplete last line of a stream that is passed on line by line. If
  // nullptr, the bytes go to stdout unchanged.
  void Read(ipc::Descriptor* fd, std::string* lines) {
    char bytes[4096];
    const ssize_t size = ::read(fd->get(), bytes, sizeof(bytes));
    if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (size <= 0) {
      fd->Reset();
      if (lines != nullptr && !lines->empty()) Line(*lines);
      return;
    }
    const absl::string_view text(bytes, static_cast<size_t>(size));
    if (lines == nullptr) return console_->Raw(launcher::Console::kOut, text);
    absl::StrAppend(lines, text);
    for (size_t end; (end = lines->find('\n')) != lines->npos; lines->erase(0, end + 1)) {
      Line(absl::string_view(*lines).substr(0, end));
    }
  }
  void Line(absl::string_view text) { console_->PrefixedLine(launcher::Console::kErr, name_, rank_, text); }
  void Reap() {
    int status = 0;
    while (::waitpid(process_.pid, &status, 0) < 0 && errno == EINTR) {
    }
    running_ = false;
    exit_code_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }

  const int rank_;
  const std::string name_;
  launcher::Spawned process_;
  launcher::Console* const console_;
  bool running_ = true;
  int exit_code_ = 0;
  std::string lines_[2];  // incomplete last lines of stdout and stderr
};

// Waits until all processes have ended and all their output is read.
int WaitForAll(std::vector<std::unique_ptr<RankProcess>>& processes, launcher::Console* console) {
  int exit_code = 0;
  absl::Time deadline = absl::InfiniteFuture();
  for (;;) {
    std::vector<pollfd> fds;
    bool done = true;
    for (const auto& process : processes) {
      process->AddTo(&fds);
      done = done && process->done();
    }
    if (done) return exit_code;
    // Output that the console could not write at once is retried soon.
    int wait_ms = console->sink(launcher::Console::kOut).backlog_bytes() > 0 ? 50 : -1;
    if (deadline != absl::InfiniteFuture()) wait_ms = wait_ms < 0 ? 100 : wait_ms;
    if (::poll(fds.data(), fds.size(), wait_ms) < 0 && errno != EINTR) {
      TANDEM_CHECK_MSG(false, "poll failed");
    }
    console->sink(launcher::Console::kOut).Flush();
    console->sink(launcher::Console::kErr).Flush();
    for (size_t i = 0; i < processes.size(); ++i) {
      const bool ran = processes[i]->running();
      processes[i]->Handle(&fds[3 * i]);
      if (!ran || processes[i]->running() || processes[i]->exit_code() == 0 || exit_code != 0) continue;
      exit_code = processes[i]->exit_code();
      processes[i]->ReportExit();
      deadline = MonotonicNow() + kGrace;
    }
    if (MonotonicNow() < deadline) continue;
    for (const auto& process : processes) process->Kill();
  }
}

}  // namespace

absl::StatusOr<int> RunRanks(int ranks, const std::vector<std::string>& args,
                             const std::vector<std::string>& names) {
  std::error_code error;
  const std::string self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return absl::UnavailableError(absl::StrCat("cannot find this program: ", error.message()));
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<cluster::StoreServer> store,
                          cluster::StoreServer::Start("127.0.0.1:0"));
  launcher::Console console;
  std::vector<std::unique_ptr<RankProcess>> processes;
  for (int rank = 0; rank < ranks; ++rank) {
    launcher::SpawnOptions options{.path = self, .args = {"tandem"}};
    options.args.insert(options.args.end(), args.begin(), args.end());
    options.environment = RankEnvironment(rank, ranks, store->port());
    TANDEM_ASSIGN_OR_RETURN(launcher::Spawned spawned, launcher::Spawn(options));
    std::string name = names.empty() ? absl::StrCat("rank/", rank) : names[static_cast<size_t>(rank)];
    processes.push_back(std::make_unique<RankProcess>(rank, std::move(name), std::move(spawned), &console));
  }
  const int exit_code = WaitForAll(processes, &console);
  console.Drain(/*seconds=*/5);
  return exit_code;
}

}  // namespace tandem::bench
