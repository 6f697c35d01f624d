// SPDX-License-Identifier: Apache-2.0
#include "launcher/process/processes.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <random>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/ipc/descriptor.h"
#include "base/status.h"
#include "launcher/process/descendants.h"

namespace tandem::launcher {
namespace {

// While more than this waits for the reader of the launcher's output, a patient Wait leaves the children's
// output in their pipes.
constexpr size_t kMaxBacklogBytes = size_t{1} << 20;

}  // namespace

void Process::Rename(std::string name) {
  output_->Rename(name);
  spec_.name = std::move(name);
}

bool Process::killed() const { return WIFSIGNALED(status_); }

bool Process::succeeded() const { return WIFEXITED(status_) && WEXITSTATUS(status_) == 0; }

int Process::exit_code() const { return killed() ? 128 + WTERMSIG(status_) : WEXITSTATUS(status_); }

std::string Process::HowItEnded() const {
  std::string text = absl::StrCat(name(), " (pid ", pid(), ") ");
  if (killed() && WTERMSIG(status_) == SIGKILL && !end_reason_.empty()) {
    absl::StrAppend(&text, end_reason_);
  } else if (killed()) {
    const int signal = WTERMSIG(status_);
    absl::StrAppend(&text, "was killed by signal ", signal, " (", SignalName(signal), ")");
  } else if (succeeded()) {
    absl::StrAppend(&text, "ended before the workers had finished");
  } else {
    absl::StrAppend(&text, "exited with code ", exit_code());
  }
  return text;
}

absl::StatusOr<std::unique_ptr<Processes>> Processes::Create(const std::vector<int>& signals) {
  std::random_device random;
  std::string mark = absl::StrCat(::getpid(), "-", absl::Hex(random(), absl::kZeroPad8),
                                  absl::Hex(random(), absl::kZeroPad8), "/");
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<ProcessReaper> guardian, ProcessReaper::Start(mark));
  std::vector<int> handled = signals;
  handled.push_back(SIGCHLD);
  // A parent may have left SIGCHLD ignored; then children would be gone before anybody has waited for them.
  ::signal(SIGCHLD, SIG_DFL);
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<SignalPipe> pipe, SignalPipe::Install(handled));
  ::signal(SIGPIPE, SIG_IGN);  // if the reader of the launcher's output goes away, the job continues
  AdoptOrphans();
  return std::unique_ptr<Processes>(new Processes(std::move(mark), std::move(guardian), std::move(pipe)));
}

Processes::Processes(std::string mark, std::unique_ptr<ProcessReaper> guardian,
                     std::unique_ptr<SignalPipe> signals)
    : kill_([](pid_t group) { ::kill(-group, SIGKILL); }),
      mark_(std::move(mark)),
      guardian_(std::move(guardian)),
      signals_(std::move(signals)) {}

Processes::~Processes() {
  for (const auto& process : processes_) {
    if (process->ended_) continue;
    ::kill(-process->pid(), SIGKILL);
    KillMarked(MarkOf(process->number_));
    if (process->lost_ && ::waitpid(process->pid(), nullptr, WNOHANG) == 0) continue;
    while (::waitpid(process->pid(), nullptr, 0) < 0 && errno == EINTR) {
    }
    if (process->spec_.terminal) TakeTerminalBack(STDIN_FILENO);
    guardian_->Forget(process->pid());
    process->ended_ = true;
  }
  if (started_ > 0) KillOrphans(Own());
  console_.Drain(/*seconds=*/2);
}

std::set<pid_t> Processes::Own() const {
  std::set<pid_t> own = {guardian_->pid()};
  for (const auto& process : processes_) {
    if (!process->ended_) own.insert(process->pid());
  }
  return own;
}

absl::StatusOr<Process*> Processes::Start(ProcessSpec spec) {
  auto output = std::make_unique<ChildOutput>(&console_, spec.name, started_, spec.front);
  TANDEM_RETURN_IF_ERROR(output->Open(spec.files));
  spec.environment.push_back(absl::StrCat(kProcessVariable, "=", MarkOf(started_)));
  std::unique_ptr<cluster::BeatPage> beat;
  if (spec.beat_period > absl::ZeroDuration()) {
    absl::StatusOr<std::unique_ptr<cluster::BeatPage>> page = cluster::BeatPage::Create(spec.beat_period);
    if (!page.ok()) return Annotate(page.status(), absl::StrCat("cannot start ", spec.name));
    beat = *std::move(page);
    spec.environment.push_back(absl::StrCat(cluster::kBeatVariable, "=", beat->descriptor()));
  }
  absl::StatusOr<Spawned> spawned = Spawn({.path = spec.program,
                                           .args = spec.args,
                                           .environment = spec.environment,
                                           .cpus = spec.cpus,
                                           .guardian_fd = guardian_->fd(),
                                           .terminal = spec.terminal ? STDIN_FILENO : -1,
                                           .inherited = beat == nullptr ? -1 : beat->descriptor()});
  if (!spawned.ok()) return Annotate(spawned.status(), absl::StrCat("cannot start ", spec.name));
  auto process = std::make_unique<Process>(std::move(spec), std::move(output));
  process->number_ = started_++;
  process->beat_ = std::move(beat);
  process->spawned_ = *std::move(spawned);
  process->started_ = MonotonicNow();
  processes_.push_back(std::move(process));
  return processes_.back().get();
}

ProcessEvents Processes::Wait(absl::Time deadline, int wake, bool patient) {
  std::vector<pollfd> fds = {{signals_->fd(), POLLIN, 0}, {wake, POLLIN, 0}};
  bool clogged = false;
  for (Console::Stream stream : {Console::kOut, Console::kErr}) {
    const OutputSink& sink = console_.sink(stream);
    fds.push_back({sink.backlog_bytes() > 0 ? sink.fd() : -1, POLLOUT, 0});
    clogged = clogged || sink.backlog_bytes() > kMaxBacklogBytes;
  }
  const bool read = !clogged || !patient;
  const size_t first = fds.size();
  for (const auto& process : processes_) {
    fds.push_back({process->ended_ ? -1 : process->spawned_.pidfd.get(), POLLIN, 0});
    fds.push_back({read ? process->spawned_.out.get() : -1, POLLIN, 0});
    fds.push_back({read ? process->spawned_.err.get() : -1, POLLIN, 0});
  }
  int timeout_ms = -1;
  if (deadline != absl::InfiniteFuture()) {
    const int64_t left = absl::ToInt64Milliseconds(deadline - MonotonicNow()) + 1;
    timeout_ms = static_cast<int>(std::clamp<int64_t>(left, 0, 1 << 30));
  }
  ProcessEvents seen;
  if (::poll(fds.data(), fds.size(), timeout_ms) < 0) return seen;  // EINTR: the caller calls Wait again

  for (size_t i = 2; i < first; ++i) {
    if (fds[i].revents != 0) console_.sink(i == 2 ? Console::kOut : Console::kErr).Flush();
  }
  if (fds[0].revents != 0) {
    while (const std::optional<ReceivedSignal> signal = signals_->Next()) {
      if (signal->number != SIGCHLD) seen.signals.push_back(signal->number);
    }
  }
  // Output before ends, so that the last lines of a process are known when its end is reported.
  for (size_t i = 0; i < processes_.size(); ++i) {
    if (fds[first + 3 * i + 1].revents != 0) ReadOutput(*processes_[i], Console::kOut);
    if (fds[first + 3 * i + 2].revents != 0) ReadOutput(*processes_[i], Console::kErr);
  }
  for (size_t i = 0; i < processes_.size(); ++i) {
    if (fds[first + 3 * i].revents != 0 && Reap(*processes_[i])) seen.ended.push_back(processes_[i].get());
  }
  if (fds[0].revents != 0 || !seen.ended.empty()) ReapOrphans(Own());
  seen.woken = fds[1].revents != 0;
  return seen;
}

bool Processes::Reap(Process& process) {
  // Kills the processes that it started and left behind. Before waitpid, because after it the kernel may give
  // the group's number to other processes.
  ::kill(-process.pid(), SIGKILL);
  KillMarked(MarkOf(process.number_));
  pid_t reaped;
  do {
    reaped = ::waitpid(process.pid(), &process.status_, WNOHANG);
  } while (reaped < 0 && errno == EINTR);
  if (reaped != process.pid()) return false;
  process.ended_ = true;
  if (process.spec_.terminal) TakeTerminalBack(STDIN_FILENO);
  if (AllEnded()) KillOrphans(Own());
  guardian_->Forget(process.pid());
  for (Console::Stream stream : {Console::kOut, Console::kErr}) ReadOutput(process, stream);
  return true;
}

void Processes::ReadOutput(Process& process, Console::Stream stream) {
  ipc::Descriptor& fd = process.stream(stream);
  char buffer[16384];
  while (fd.valid()) {
    const ssize_t size = ::read(fd.get(), buffer, sizeof(buffer));
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && errno == EAGAIN) return;
    if (size <= 0) {
      fd.Reset();
      process.output_->Finish(stream);
      return;
    }
    process.output_->Consume(stream, absl::string_view(buffer, static_cast<size_t>(size)));
    // A process that writes without a pause must not delay the other processes and signals.
    if (!process.ended_ && static_cast<size_t>(size) == sizeof(buffer)) return;
  }
}

void Processes::Signal(bool serving, int signal) {
  for (const auto& process : processes_) {
    if (process->ended_ || process->spec_.serves != serving) continue;
    ::kill(-process->pid(), signal);
    ::kill(-process->pid(), SIGCONT);
  }
}

void Processes::KillAll() {
  for (const auto& process : processes_) {
    if (!process->ended_) kill_(process->pid());
  }
}

void Processes::Kill(Process& process, std::string reason) {
  process.end_reason_ = std::move(reason);
  kill_(process.pid());
}

bool Processes::AllEnded() const {
  return absl::c_all_of(processes_, [](const auto& process) { return process->ended_ || process->lost_; });
}

bool Processes::OnlyServing() const {
  return absl::c_all_of(processes_, [](const auto& process) {
    return process->ended_ || process->lost_ || process->spec_.serves;
  });
}

void Processes::ForgetEnded() {
  for (const auto& process : processes_) {
    if (!process->ended_) continue;
    for (Console::Stream stream : {Console::kOut, Console::kErr}) {
      ReadOutput(*process, stream);
      process->output_->Finish(stream);
    }
  }
  std::erase_if(processes_, [](const auto& process) { return process->ended_; });
}

}  // namespace tandem::launcher
