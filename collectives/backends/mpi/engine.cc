// SPDX-License-Identifier: Apache-2.0
#include "collectives/backends/mpi/engine.h"

#include <mpi.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/timed_wait.h"

namespace tandem::collectives::mpi {
namespace {

// After this long without progress the thread sleeps, because oversubscribed ranks need the core. It does not
// yield: on a busy machine a yield costs a whole scheduler round, but a sleeping thread is woken in time.
constexpr absl::Duration kSpinFor = absl::Microseconds(20);
constexpr absl::Duration kShortestSleep = absl::Microseconds(20);
constexpr absl::Duration kLongestSleep = absl::Milliseconds(1);
// MPI_Finalize waits for all ranks; the process of a broken rank must still be able to exit.
constexpr absl::Duration kFinalizeTimeout = absl::Seconds(5);

}  // namespace

class CallActivity final : public Activity {
 public:
  explicit CallActivity(std::function<absl::Status()> body) : body_(std::move(body)) {}
  bool Poll() override {
    absl::Status status = body_();
    absl::MutexLock lock(&mutex_);
    status_ = std::move(status);
    done_ = true;
    return true;
  }
  bool Wait(absl::Time deadline) {
    absl::MutexLock lock(&mutex_);
    return AwaitUntil(&mutex_, absl::Condition(&done_), deadline);
  }
  bool done() {
    absl::MutexLock lock(&mutex_);
    return done_;
  }
  absl::Status status() {
    absl::MutexLock lock(&mutex_);
    return status_;
  }

 private:
  const std::function<absl::Status()> body_;
  absl::Mutex mutex_;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

absl::Status FromMpi(int error, absl::string_view call) {
  if (error == MPI_SUCCESS) return absl::OkStatus();
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  if (MPI_Error_string(error, text, &length) != MPI_SUCCESS) length = 0;
  return absl::UnavailableError(absl::StrCat(call, " failed: ", absl::string_view(text, length)));
}

absl::StatusOr<std::shared_ptr<Engine>> Engine::Get(absl::Time deadline) {
  // Never destroyed: the exit handler ends it, and its thread may be inside MPI forever.
  static absl::Mutex& mutex = *new absl::Mutex;
  static auto& engine = *new std::shared_ptr<Engine>;
  static bool started = false;
  absl::MutexLock lock(&mutex);
  if (engine == nullptr) {
    static const int at_exit = std::atexit([] {
      if (engine != nullptr) engine->Finish();
    });
    (void)at_exit;
    engine = std::make_shared<Engine>();
    engine->Start([] { return engine->Initialize(); });
  }
  if (!started) {
    // After DeadlineExceeded the engine stays: its thread may still be inside MPI_Init_thread, and a second
    // thread must not call that.
    const absl::Status status = engine->AwaitStarted(deadline);
    if (absl::IsDeadlineExceeded(status)) return status;
    if (!status.ok()) {
      engine->Finish();
      engine.reset();
      return status;
    }
    started = true;
  }
  return engine;
}

Engine::~Engine() {
  if (thread_.joinable()) thread_.join();
}

void Engine::Start(std::function<absl::Status()> initialize) {
  start_ = std::make_shared<CallActivity>(std::move(initialize));
  Add(start_);
  thread_ = std::thread([this] { Loop(); });
}

absl::Status Engine::AwaitStarted(absl::Time deadline) {
  if (start_->Wait(deadline)) return start_->status();
  return absl::DeadlineExceededError("MPI_Init_thread did not return in time");
}

absl::Status Engine::Initialize() {
  int initialized = 0, finalized = 0, provided = MPI_THREAD_SINGLE;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  if (finalized != 0) {
    return absl::FailedPreconditionError(
        "MPI is finalised already; destroy the groups before MPI_Finalize, and make none after it");
  }
  if (initialized != 0) {
    MPI_Query_thread(&provided);
  } else {
    const int error = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
    if (error != MPI_SUCCESS) return absl::UnavailableError(absl::StrCat("MPI_Init_thread failed: ", error));
    finalize_ = true;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  }
  if (provided < MPI_THREAD_SERIALIZED) {
    return absl::FailedPreconditionError(
        "MPI was initialised for one thread only; call MPI_Init_thread with MPI_THREAD_SERIALIZED, or with "
        "MPI_THREAD_MULTIPLE if the program itself calls MPI while groups exist");
  }
  int* limit = nullptr;
  int found = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &world_rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &world_size_);
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &limit, &found);
  largest_tag_ = found != 0 ? *limit : 32767;  // guaranteed by the standard
  return absl::OkStatus();
}

void Engine::Finish() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.SignalAll();
    if (!AwaitFor(&mutex_, absl::Condition(&stopped_), kFinalizeTimeout)) {
      thread_.detach();  // the process exits while it runs
      return;
    }
  }
  thread_.join();
}

void Engine::Add(std::shared_ptr<Activity> activity) {
  absl::MutexLock lock(&mutex_);
  new_.push_back(std::move(activity));
  has_new_.store(true, std::memory_order_release);
  changed_.Signal();
}

absl::Status Engine::Call(absl::string_view what, std::function<absl::Status()> body, absl::Time deadline) {
  {
    absl::MutexLock lock(&mutex_);
    if (stuck_ != nullptr && !stuck_->done()) {
      return absl::UnavailableError(
          absl::StrCat("MPI still hangs in an earlier ", stuck_in_, " of this process"));
    }
    stuck_ = nullptr;
  }
  auto call = std::make_shared<CallActivity>(std::move(body));
  Add(call);
  if (call->Wait(deadline)) return call->status();
  absl::MutexLock lock(&mutex_);
  // Calls end in their order: the first one that hangs is the reason for those behind it.
  if (stuck_ == nullptr || stuck_->done()) {
    stuck_ = std::move(call);
    stuck_in_ = std::string(what);
  }
  return absl::DeadlineExceededError(absl::StrCat(what, " did not return in time"));
}

void Engine::Loop() {
  prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0);  // nanoseconds; short sleeps must be short
  absl::Time progressed = MonotonicNow();
  for (;;) {
    if (has_new_.exchange(false, std::memory_order_acquire)) {
      absl::MutexLock lock(&mutex_);
      std::move(new_.begin(), new_.end(), std::back_inserter(running_));
      new_.clear();
      progressed = MonotonicNow();
    }
    bool foreground = false, background = false, over = false;
    for (std::shared_ptr<Activity>& activity : running_) {
      if (activity->Poll()) {
        activity.reset();
        over = true;
      } else {
        (activity->background() ? background : foreground) = true;
      }
    }
    const absl::Time now = MonotonicNow();
    if (over) {
      running_.erase(std::remove(running_.begin(), running_.end(), nullptr), running_.end());
      progressed = now;
    }
    {
      absl::MutexLock lock(&mutex_);
      if (stopping_) break;
    }
    WaitForWork(foreground, background, now - progressed);
  }
  if (finalize_) {
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (finalized == 0) MPI_Finalize();
  }
  absl::MutexLock lock(&mutex_);
  stopped_ = true;
}

void Engine::WaitForWork(bool foreground, bool background, absl::Duration idle) {
  if (idle < kSpinFor) return;
  const absl::Duration sleep = foreground   ? std::clamp(idle / 16, kShortestSleep, kLongestSleep)
                               : background ? kIdlePoll
                                            : absl::InfiniteDuration();
  absl::MutexLock lock(&mutex_);
  if (!stopping_ && new_.empty()) tandem::WaitUntil(&changed_, &mutex_, MonotonicNow() + sleep);
}

}  // namespace tandem::collectives::mpi
