#include "cli/launch/launcher.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <thread>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "cli/launch/unique_fd.h"

namespace tandem::cli {
namespace {

// How long after a first failure a better explanation is waited for: a death by signal beats the errors that
// it causes in others, and so does what a failing member has told the job.
constexpr absl::Duration kSettle = absl::Milliseconds(100);
// While this much output waits for the reader of our own, the children's is left in their pipes.
constexpr size_t kMaxBacklogBytes = size_t{1} << 20;

std::string SignalName(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name == nullptr ? absl::StrCat("signal ", signal) : absl::StrCat("SIG", name);
}

}  // namespace

struct Launcher::Child {
  ProcessSpec spec;
  Spawned process;
  std::unique_ptr<ChildOutput> output;
  bool ended = false;
  int status = 0;  // of waitpid

  bool killed() const { return WIFSIGNALED(status); }
  bool succeeded() const { return WIFEXITED(status) && WEXITSTATUS(status) == 0; }
  int exit_code() const { return killed() ? 128 + WTERMSIG(status) : WEXITSTATUS(status); }
  UniqueFd& stream(Console::Stream stream) { return stream == Console::kOut ? process.out : process.err; }
  std::string HowItEnded() const {
    std::string text = absl::StrCat(spec.name, " (pid ", process.pid, ") ");
    if (killed()) {
      absl::StrAppend(&text, "was killed by signal ", WTERMSIG(status), " (", SignalName(WTERMSIG(status)),
                      ")");
    } else if (succeeded()) {
      absl::StrAppend(&text, "ended before the workers had finished");
    } else {
      absl::StrAppend(&text, "exited with code ", exit_code());
    }
    return text;
  }
};

// Waits for the members' own verdict on a thread, and makes it something to poll for.
struct Launcher::JobWatch {
  explicit JobWatch(collectives::Membership* job)
      : membership(job), event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    thread = std::thread([this] {
      membership->WaitUntilEnded(absl::InfiniteFuture());
      const uint64_t one = 1;
      [[maybe_unused]] const ssize_t ignored = ::write(event.get(), &one, sizeof(one));
    });
  }
  ~JobWatch() {
    membership->End("tandem run", /*failed=*/false, "the launcher ends");
    thread.join();
  }
  collectives::Membership* const membership;
  const UniqueFd event;
  bool seen = false;
  std::thread thread;
};

absl::StatusOr<std::unique_ptr<Launcher>> Launcher::Create() {
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<Guardian> guardian, Guardian::Start());
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<SignalPipe> signals,
                          SignalPipe::Install({SIGINT, SIGTERM, SIGHUP}));
  ::signal(SIGPIPE, SIG_IGN);  // a reader of our output that goes away ends the output, not the job
  return std::unique_ptr<Launcher>(new Launcher(std::move(guardian), std::move(signals)));
}

Launcher::Launcher(std::unique_ptr<Guardian> guardian, std::unique_ptr<SignalPipe> signals)
    : guardian_(std::move(guardian)), signals_(std::move(signals)) {}

Launcher::~Launcher() {
  for (const auto& child : children_) {
    if (child->ended) continue;
    ::kill(-child->process.pid, SIGKILL);
    while (::waitpid(child->process.pid, nullptr, 0) < 0 && errno == EINTR) {
    }
    guardian_->Forget(child->process.pid);
  }
  console_.Drain(/*seconds=*/2);
}

absl::Status Launcher::Start(const ProcessSpec& spec) {
  auto child = std::make_unique<Child>();
  child->spec = spec;
  child->output =
      std::make_unique<ChildOutput>(&console_, spec.name, static_cast<int>(children_.size()), spec.front);
  TANDEM_RETURN_IF_ERROR(child->output->OpenLog(
      absl::StrCat(options_.log_dir, "/", absl::StrReplaceAll(spec.name, {{"/", "-"}}), ".log")));
  absl::StatusOr<Spawned> spawned = Spawn({.path = spec.program,
                                           .args = spec.args,
                                           .environment = spec.environment,
                                           .guardian_fd = guardian_->fd()});
  if (!spawned.ok()) return Annotate(spawned.status(), absl::StrCat("cannot start ", spec.name));
  child->process = *std::move(spawned);
  children_.push_back(std::move(child));
  return absl::OkStatus();
}

int Launcher::Run(collectives::Membership* membership) {
  deadline_ = absl::Now() + options_.timeout;
  {
    JobWatch watch(membership);
    while (!AllEnded()) {
      Poll(watch);
      if (absl::Now() >= deadline_) OnDeadline();
      if (phase_ == Phase::kRunning &&
          absl::c_all_of(children_, [](const auto& child) { return child->spec.server || child->ended; })) {
        membership->End("", /*failed=*/false, "all workers have finished");
        Stop(0);
      }
    }
    // All may have ended, the last one badly, within one turn of the loop.
    if (phase_ == Phase::kSettling) AnnounceFailure();
  }
  for (const auto& child : children_) {
    for (Console::Stream stream : {Console::kOut, Console::kErr}) {
      ReadOutput(*child, stream);
      child->output->Finish(stream);
    }
  }
  return exit_code_;
}

void Launcher::Poll(JobWatch& watch) {
  std::vector<pollfd> fds = {{signals_->fd(), POLLIN, 0}, {watch.seen ? -1 : watch.event.get(), POLLIN, 0}};
  for (Console::Stream stream : {Console::kOut, Console::kErr}) {
    const OutputSink& sink = console_.sink(stream);
    fds.push_back({sink.backlog_bytes() > 0 ? sink.fd() : -1, POLLOUT, 0});
  }
  const bool clogged = console_.sink(Console::kOut).backlog_bytes() > kMaxBacklogBytes ||
                       console_.sink(Console::kErr).backlog_bytes() > kMaxBacklogBytes;
  const bool read = !clogged || phase_ != Phase::kRunning;
  const size_t first_child = fds.size();
  for (const auto& child : children_) {
    fds.push_back({child->ended ? -1 : child->process.pidfd.get(), POLLIN, 0});
    fds.push_back({read ? child->process.out.get() : -1, POLLIN, 0});
    fds.push_back({read ? child->process.err.get() : -1, POLLIN, 0});
  }
  int timeout_ms = -1;
  if (deadline_ != absl::InfiniteFuture()) {
    const int64_t left = absl::ToInt64Milliseconds(deadline_ - absl::Now()) + 1;
    timeout_ms = static_cast<int>(std::clamp<int64_t>(left, 0, 1 << 30));
  }
  if (::poll(fds.data(), fds.size(), timeout_ms) < 0) return;  // EINTR: the loop comes back

  for (size_t i = 2; i < first_child; ++i) {
    if (fds[i].revents != 0) console_.sink(i == 2 ? Console::kOut : Console::kErr).Flush();
  }
  if (fds[0].revents != 0) OnSignal();
  // Output before ends, so that a root cause's last words are there when it is named.
  for (size_t i = 0; i < children_.size(); ++i) {
    if (fds[first_child + 3 * i + 1].revents != 0) ReadOutput(*children_[i], Console::kOut);
    if (fds[first_child + 3 * i + 2].revents != 0) ReadOutput(*children_[i], Console::kErr);
  }
  for (size_t i = 0; i < children_.size(); ++i) {
    if (fds[first_child + 3 * i].revents != 0) OnChildEnd(*children_[i]);
  }
  if (fds[1].revents != 0) {
    watch.seen = true;
    OnJobState(watch.membership->State());
  }
}

void Launcher::OnSignal() {
  while (const std::optional<int> next = signals_->Next()) {
    const int signal = *next;
    if (phase_ == Phase::kRunning || phase_ == Phase::kSettling) {
      console_.Say(absl::StrCat("stopping on ", SignalName(signal)));
      Stop(128 + signal);
    } else if (phase_ == Phase::kStopping && exit_code_ != 0) {
      deadline_ = absl::Now();  // asked twice: no more grace
    }
  }
}

void Launcher::OnJobState(const collectives::JobState& state) {
  if (!state.failed || (phase_ != Phase::kRunning && phase_ != Phase::kSettling)) return;
  job_failure_ = state.reason;
  NoteFailure(kSettle);
}

void Launcher::OnChildEnd(Child& child) {
  // What it started and left behind goes, too: now, while its number cannot belong to anybody else.
  ::kill(-child.process.pid, SIGKILL);
  pid_t reaped;
  do {
    reaped = ::waitpid(child.process.pid, &child.status, WNOHANG);
  } while (reaped < 0 && errno == EINTR);
  if (reaped != child.process.pid) return;
  child.ended = true;
  guardian_->Forget(child.process.pid);
  for (Console::Stream stream : {Console::kOut, Console::kErr}) ReadOutput(child, stream);
  if (phase_ == Phase::kRunning || phase_ == Phase::kSettling) {
    if (child.succeeded() && !child.spec.server) return;
    // A server that ends well once the job has is only early.
    failed_.push_back(&child);
    NoteFailure(child.killed() ? absl::ZeroDuration() : kSettle);
  } else if (exit_code_ == 0 && !child.succeeded()) {
    console_.Say(absl::StrCat(child.HowItEnded(), " while it was being stopped"));
  }
}

void Launcher::ReadOutput(Child& child, Console::Stream stream) {
  UniqueFd& fd = child.stream(stream);
  char buffer[16384];
  while (fd.valid()) {
    const ssize_t size = ::read(fd.get(), buffer, sizeof(buffer));
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && errno == EAGAIN) return;
    if (size <= 0) {
      fd.Reset();
      child.output->Finish(stream);
      return;
    }
    child.output->Consume(stream, absl::string_view(buffer, static_cast<size_t>(size)));
    // One process that never pauses must not keep the others, and signals, waiting.
    if (!child.ended && static_cast<size_t>(size) == sizeof(buffer)) return;
  }
}

void Launcher::NoteFailure(absl::Duration settle) {
  const absl::Time until = absl::Now() + settle;
  deadline_ = phase_ == Phase::kSettling ? std::min(deadline_, until) : until;
  phase_ = Phase::kSettling;
}

void Launcher::OnDeadline() {
  switch (phase_) {
    case Phase::kRunning:
      console_.Say(absl::StrCat("the job did not end within ", absl::FormatDuration(options_.timeout),
                                "; stopping it"));
      return Stop(124);
    case Phase::kSettling:
      return AnnounceFailure();
    case Phase::kStopping:
      phase_ = Phase::kKilling;
      deadline_ = absl::InfiniteFuture();
      return SignalAll(SIGKILL);
    case Phase::kKilling:
      return;
  }
}

void Launcher::AnnounceFailure() {
  const auto killed = absl::c_find_if(failed_, [](const Child* child) { return child->killed(); });
  const Child* cause = killed != failed_.end() ? *killed : failed_.empty() ? nullptr : failed_.front();
  std::string line;
  bool explained = false;
  if (!job_failure_.empty() && killed == failed_.end()) {
    line = absl::StrCat("the job failed: ", job_failure_);
    // The member that the reason speaks of knows more than the first to notice.
    for (const auto& child : children_) {
      if (absl::StartsWith(job_failure_, absl::StrCat(child->spec.name, ":")) ||
          absl::StartsWith(job_failure_, absl::StrCat(child->spec.name, " "))) {
        cause = child.get();
        explained = absl::StartsWith(job_failure_, absl::StrCat(child->spec.name, ":"));
      }
    }
  } else {
    line = cause->HowItEnded();
  }
  console_.Say(absl::StrCat(line, "; stopping the job"));
  if (cause != nullptr && !explained) {
    if (!cause->output->tail().empty()) {
      console_.Say(absl::StrCat("the last lines of ", cause->output->log_path(), ":"));
      for (const std::string& text : cause->output->tail()) console_.Say(absl::StrCat("  | ", text));
    } else {
      console_.Say(absl::StrCat(cause->output->log_path(), " is empty"));
    }
  }
  const Child* code = cause != nullptr && cause->ended ? cause : failed_.empty() ? nullptr : failed_.front();
  Stop(code == nullptr || code->exit_code() == 0 ? 1 : code->exit_code());
}

void Launcher::Stop(int exit_code) {
  exit_code_ = exit_code;
  phase_ = Phase::kStopping;
  deadline_ = absl::Now() + options_.grace;
  SignalAll(SIGTERM);
  SignalAll(SIGCONT);  // a stopped process would not notice
}

void Launcher::SignalAll(int signal) {
  for (const auto& child : children_) {
    if (!child->ended) ::kill(-child->process.pid, signal);
  }
}

bool Launcher::AllEnded() const {
  return absl::c_all_of(children_, [](const auto& child) { return child->ended; });
}

}  // namespace tandem::cli
