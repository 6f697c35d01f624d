// SPDX-License-Identifier: Apache-2.0
#include "python/src/job_member.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/logging.h"
#include "base/status.h"
#include "cluster/environment.h"
#include "python/src/process.h"
#include "rpc/forwarding_channel.h"

namespace tandem::python {
namespace {

constexpr absl::Duration kExitAfter = absl::Seconds(10);
constexpr absl::Duration kLeaveTimeout = absl::Seconds(5);

// The membership of this process. A forked child has none, because its parent's threads do not exist there.
struct Current {
  absl::Mutex mutex;  // held while the process joins
  std::weak_ptr<JobMember> member ABSL_GUARDED_BY(mutex);
  std::shared_ptr<JobMember> until_exit ABSL_GUARDED_BY(mutex);  // GetLaunched
  std::string key ABSL_GUARDED_BY(mutex);                        // of the job and the member's name
  uint64_t made ABSL_GUARDED_BY(mutex) = 0;

  std::shared_ptr<JobMember> Find() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return made == ForkGeneration() ? member.lock() : nullptr;
  }
};

// Tests change the environment of a process, and so its job.
std::string KeyOf(const cluster::Environment& env) {
  return absl::StrCat(env.member(), " ", env.epoch, " ", env.run_id, " ", env.store, " ", env.master_addr,
                      " ", env.master_port);
}

Current& ThisProcess() {
  static Current* const current = new Current;
  return *current;
}

absl::StatusOr<absl::Duration> ExitAfter() {
  const char* const text = std::getenv(kExitAfterVariable);
  if (text == nullptr || *text == '\0') return kExitAfter;
  if (absl::string_view(text) == "never") return absl::InfiniteDuration();
  double seconds = 0;
  if (absl::SimpleAtod(text, &seconds) && seconds >= 0 && seconds <= 86400) return absl::Seconds(seconds);
  return absl::InvalidArgumentError(
      absl::StrCat(kExitAfterVariable, "='", text, "': expected seconds from 0 to 86400, or 'never'"));
}

// Returns the membership, or nullptr while another thread joins: its job has not failed for this process.
std::shared_ptr<JobMember> FindOrNull() {
  Current& current = ThisProcess();
  if (!current.mutex.TryLock()) return nullptr;
  std::shared_ptr<JobMember> job = current.Find();
  current.mutex.Unlock();
  return job;
}

// The interpreter may end without having destroyed all objects.
void LeaveAtExit() {
  std::shared_ptr<JobMember> job;
  {
    absl::MutexLock lock(&ThisProcess().mutex);
    job = ThisProcess().Find();
  }
  if (job != nullptr) job->Leave();
}

// A channel to a server of the job.
class JobChannel final : public rpc::ForwardingChannel {
 public:
  JobChannel(std::shared_ptr<JobMember> job, std::shared_ptr<rpc::Channel> channel)
      : ForwardingChannel(std::move(channel)), job_(std::move(job)) {}

  void CallAsync(absl::string_view method, Bytes request, const rpc::CallOptions& options,
                 Done done) override {
    if (absl::Status status = job_->status(); !status.ok()) {
      std::move(done)(std::move(status));
      return;
    }
    ForwardingChannel::CallAsync(method, std::move(request), options, std::move(done));
  }

 private:
  const std::shared_ptr<JobMember> job_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<JobMember>> JobMember::Get(absl::Duration timeout) {
  Current& current = ThisProcess();
  absl::MutexLock lock(&current.mutex);
  TANDEM_ASSIGN_OR_RETURN(const cluster::Environment env, cluster::Environment::FromEnv());
  const std::string key = KeyOf(env);
  if (std::shared_ptr<JobMember> joined = current.Find(); joined != nullptr && current.key == key)
    return joined;
  TANDEM_ASSIGN_OR_RETURN(const absl::Duration exit_after, ExitAfter());
  // A server or an actor is for learners of later lives of the job, too.
  TANDEM_ASSIGN_OR_RETURN(
      std::unique_ptr<cluster::Member> member,
      cluster::Member::Join(
          env, {.join_timeout = timeout, .outlives_job = !env.worker, .exit_after = exit_after}));
  member->status()->SetState("running");
  member->ReportStatus();
  std::shared_ptr<JobMember> joined =
      LeakAfterFork(std::unique_ptr<JobMember>(new JobMember(std::move(member))));
  current.member = joined;
  current.key = key;
  current.made = ForkGeneration();
  static const int registered = std::atexit(LeaveAtExit);
  (void)registered;
  return joined;
}

absl::StatusOr<std::shared_ptr<JobMember>> JobMember::GetLaunched(absl::Duration timeout) {
  const char* const store = std::getenv("TANDEM_STORE");
  if (store != nullptr && *store != '\0') {
    TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<JobMember> job, Get(timeout));
    std::shared_ptr<JobMember> before = job;
    {
      absl::MutexLock lock(&ThisProcess().mutex);
      ThisProcess().until_exit.swap(before);
    }
    return job;
  }
  return absl::FailedPreconditionError(
      "this process has no TANDEM_STORE, which `tandem run` sets, so there is no job with servers; start it "
      "with `tandem run --learners 1 --replay 1 --actors 4 -- python script.py`, give the server's address, "
      "or use local()");
}

JobMember::~JobMember() { Leave(); }

void JobMember::Leave() {
  if (unfinished_.load()) return;
  const absl::Status left = member_->Leave(kLeaveTimeout, "the program has finished");
  if (!left.ok()) LogDebug(left.message());
}

absl::Status JobMember::status() const {
  const std::optional<cluster::End> end = member_->end();
  if (!end.has_value() || end->failure.ok()) return absl::OkStatus();
  return absl::UnavailableError(end->reason);
}

std::shared_ptr<rpc::Channel> JobMember::Keep(std::shared_ptr<JobMember> job,
                                              std::shared_ptr<rpc::Channel> channel) {
  return std::make_shared<JobChannel>(std::move(job), std::move(channel));
}

absl::Status JobMember::StatusOfProcess() {
  const std::shared_ptr<JobMember> job = FindOrNull();
  return job == nullptr ? absl::OkStatus() : job->status();
}

void JobMember::OnRaise() {
  if (::syscall(SYS_gettid) != ::getpid()) return;
  const std::shared_ptr<JobMember> job = FindOrNull();
  if (job != nullptr && !job->status().ok()) (*job)->AcknowledgeEnd();
}

}  // namespace tandem::python
