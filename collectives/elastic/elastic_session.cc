// SPDX-License-Identifier: Apache-2.0
#include "collectives/elastic/elastic_session.h"

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/logging.h"
#include "base/status.h"
#include "base/timed_wait.h"
#include "cluster/join.h"
#include "cluster/membership/beat.h"
#include "cluster/store/memory_store.h"
#include "cluster/store/remote_store.h"
#include "rpc/channel.h"

namespace tandem::collectives {
namespace {

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

absl::Status ElasticRound::CompleteStep(int64_t step) {
  if (step != completed_ + 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("step ", step, " cannot be completed after step ", completed_, ": steps go one by one"));
  }
  *executed_ = step;
  if (group_ != nullptr) TANDEM_RETURN_IF_ERROR(group_->Barrier().Wait());
  completed_ = step;
  return absl::OkStatus();
}

// Thread-safe. Owns a thread that waits for the launcher to say that the round is over.
class ElasticSession::Watch {
 public:
  Watch(LauncherClient* agent, const Assignment& assignment) : agent_(agent), assignment_(assignment) {
    if (agent_ != nullptr) thread_ = std::thread([this] { Run(); });
  }
  ~Watch() {
    stopping_ = true;
    if (thread_.joinable()) thread_.join();
  }

  // Returns why the round is over, or OK while it is not.
  absl::Status over() const {
    absl::MutexLock lock(&mutex_);
    return over_;
  }
  // Sets the group to abort when the round is over. Call it with nullptr before the group is destroyed.
  void SetGroup(ProcessGroup* group) {
    absl::MutexLock lock(&group_mutex_);
    group_ = group;
    if (group_ == nullptr) return;
    if (const absl::Status why = over(); !why.ok()) group_->Abort(why.message());
  }
  // Blocks until the launcher has said that the round is over, for at most `timeout`. Returns whether it has.
  bool AwaitOver(absl::Duration timeout) {
    absl::MutexLock lock(&mutex_);
    const auto is_over = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !over_.ok(); };
    return AwaitFor(&mutex_, absl::Condition(&is_over), timeout);
  }

 private:
  void Run() {
    while (!stopping_) {
      // A short timeout, because the destructor waits for this call.
      absl::StatusOr<std::string> reason = agent_->AwaitOver(assignment_.number, absl::Milliseconds(100));
      if (!reason.ok() && absl::IsDeadlineExceeded(reason.status())) continue;
      const absl::Status why =
          reason.ok() ? absl::AbortedError(absl::StrCat("epoch ", assignment_.epoch, " is over: ", *reason))
                      : Annotate(reason.status(), "the launcher does not answer");
      {
        absl::MutexLock lock(&mutex_);
        over_ = why;
      }
      absl::MutexLock lock(&group_mutex_);
      if (group_ != nullptr) group_->Abort(why.message());
      return;
    }
  }

  LauncherClient* const agent_;
  const Assignment assignment_;
  std::atomic<bool> stopping_{false};
  // Held while the group is aborted. Abort calls over(), so this is another mutex than mutex_.
  absl::Mutex group_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);
  ProcessGroup* group_ ABSL_GUARDED_BY(group_mutex_) = nullptr;
  mutable absl::Mutex mutex_;
  absl::Status over_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

absl::StatusOr<std::unique_ptr<ElasticSession>> ElasticSession::Create(ElasticOptions options) {
  cluster::StartBeat();
  TANDEM_ASSIGN_OR_RETURN(const cluster::Environment env, cluster::Environment::FromEnv());
  Assignment first;
  first.number = 1;
  if (const std::string number = Variable("TANDEM_ASSIGNMENT");
      !number.empty() && (!absl::SimpleAtoi(number, &first.number) || first.number < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("TANDEM_ASSIGNMENT='", number, "' is no number of a round"));
  }
  first.epoch = env.epoch;
  first.rank = env.rank;
  first.world_size = env.world_size;
  first.local_rank = env.local_rank;
  first.local_world_size = env.local_world_size;
  first.group_rank = env.group_rank;
  first.restarts = env.restart_count;
  first.store = env.store;
  first.master_addr = env.master_addr;
  first.master_port = env.master_port;
  std::unique_ptr<LauncherClient> agent;
  if (const std::string address = Variable("TANDEM_AGENT"); !address.empty()) {
    TANDEM_ASSIGN_OR_RETURN(agent,
                            LauncherClient::Connect(address, absl::StrCat(env.role, "/", env.local_rank)));
  }
  auto session = std::make_unique<ElasticSession>(std::move(options), std::move(first), std::move(agent));
  session->run_id_ = env.run_id;
  session->role_ = env.role;
  return session;
}

ElasticSession::ElasticSession(ElasticOptions options, Assignment first,
                               std::unique_ptr<LauncherClient> agent)
    : options_(std::move(options)),
      first_(std::move(first)),
      agent_(std::move(agent)),
      executed_(options_.completed_step) {}

ElasticSession::~ElasticSession() = default;

absl::Status ElasticSession::Run(const std::function<absl::Status(ElasticRound&)>& body) {
  Assignment assignment = first_;
  while (true) {
    bool may_go_on = false;
    const absl::Status ended = RunRound(body, assignment, &may_go_on);
    if (ended.ok() || !may_go_on || agent_ == nullptr) return ended;
    LogInfo(absl::StrCat("rank ", assignment.rank, " leaves epoch ", assignment.epoch, " after step ",
                         executed_, ": ", ended.message()));
    absl::StatusOr<Assignment> next =
        agent_->AwaitAssignment(assignment.number + 1, MonotonicNow() + options_.round_timeout);
    if (!next.ok()) return Annotate(next.status(), absl::StrCat("after epoch ", assignment.epoch));
    assignment = *std::move(next);
  }
}

absl::Status ElasticSession::RunRound(const std::function<absl::Status(ElasticRound&)>& body,
                                      const Assignment& assignment, bool* may_go_on) {
  ElasticRound round(
      assignment,
      {.run_id = run_id_, .epoch = assignment.epoch, .member = absl::StrCat(role_, "/", assignment.rank)},
      &executed_);
  Watch watch(agent_.get(), assignment);
  absl::Status status = Connect(&round, &watch);
  bool users = false;  // whether the error is the program's own
  if (status.ok()) status = Agree(&round);
  if (status.ok()) {
    status = body(round);
    users = !status.ok() && round.group_->error().ok() && watch.over().ok();
    // All ranks must be done: a rank that left earlier would be missing in the other ranks' last step.
    if (status.ok()) status = round.group_->Barrier().Wait();
  } else if (absl::IsDataLoss(status)) {
    users = true;
  }
  watch.SetGroup(nullptr);
  if (!status.ok() && round.group_ != nullptr) round.group_->Abort(status.message());
  round.group_.reset();
  if (status.ok() || users) return status;
  // The launcher's reason is the better one. If it gives none within a moment, it does not know of the
  // failure.
  *may_go_on = true;
  if (agent_ != nullptr && watch.over().ok() && !watch.AwaitOver(absl::Milliseconds(300))) {
    const absl::Status told = agent_->ReportPeerFailure(assignment.number, status.message());
    if (!told.ok()) LogWarning(told.message());
  }
  return watch.over().ok() ? status : watch.over();
}

absl::Status ElasticSession::Connect(ElasticRound* round, Watch* watch) {
  const Assignment& a = round->assignment_;
  const std::string address = a.store.empty() ? absl::StrCat(a.master_addr, ":", a.master_port) : a.store;
  ProcessGroupOptions group = options_.group;
  group.rank = a.rank;
  group.world_size = a.world_size;
  group.name = "elastic";
  group.epoch = a.epoch;
  group.timeout = std::min(group.timeout, options_.connect_timeout);
  group.should_continue = [watch] { return watch->over(); };
  if (a.world_size == 1) {
    round->store_ = std::make_shared<cluster::MemoryStore>();  // there is no other rank
  } else {
    rpc::Caller client = round->caller_;
    client.member.clear();  // a member would have to join
    TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<rpc::Channel> channel,
                            cluster::ConnectStore(address, std::move(client)));
    round->store_ = std::make_shared<cluster::RemoteStore>(
        std::move(channel), std::min(options_.connect_timeout, options_.store_timeout));
  }
  TANDEM_ASSIGN_OR_RETURN(round->group_, InitProcessGroup(round->store_.get(), group));
  watch->SetGroup(round->group_.get());
  return watch->over();
}

absl::Status ElasticSession::Agree(ElasticRound* round) {
  ProcessGroup& group = *round->group_;
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> said,
                          group.AllGatherBytes(absl::StrCat(last_epoch_, " ", executed_)));
  struct Said {
    int64_t epoch = 0, step = 0;
  };
  std::vector<Said> all;
  for (const std::string& text : said) {
    const std::vector<std::string> parts = absl::StrSplit(text, ' ');
    Said one;
    if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &one.epoch) ||
        !absl::SimpleAtoi(parts[1], &one.step)) {
      return absl::InternalError("ranks of another version: their last step is not understood");
    }
    all.push_back(one);
  }
  int64_t newest = 0;
  for (const Said& one : all) newest = std::max(newest, one.epoch);
  int64_t step = -1;
  for (const Said& one : all) {
    if (one.epoch != newest) continue;
    step = step < 0 ? one.step : newest > 0 ? std::min(step, one.step) : std::max(step, one.step);
  }
  const auto has_state = [&](const Said& one) { return one.epoch == newest && one.step == step; };
  const int source = static_cast<int>(std::find_if(all.begin(), all.end(), has_state) - all.begin());
  if (!std::all_of(all.begin(), all.end(), has_state)) {
    std::string state;
    absl::Status saved;
    if (round->rank() == source && options_.save) {
      absl::StatusOr<std::string> bytes = options_.save();
      saved = bytes.status();
      if (bytes.ok()) state = *std::move(bytes);
    }
    // Returning ends the round, so that the other ranks do not wait for a source that cannot save.
    if (!saved.ok())
      return absl::DataLossError(absl::StrCat("saving the state of step ", step, ": ", saved.message()));
    TANDEM_ASSIGN_OR_RETURN(const std::string received, group.BroadcastBytes(state, {.root = source}));
    if (!has_state(all[round->rank()])) {
      if (options_.load) {
        if (absl::Status loaded = options_.load(received); !loaded.ok()) {
          return absl::DataLossError(
              absl::StrCat("loading the state of step ", step, ": ", loaded.message()));
        }
      }
      executed_ = step;
    }
  }
  // A rank that passes this barrier knows that all ranks have the state. A rank that fails in it has the
  // state, too, although it does not count the round as one in which it had.
  TANDEM_RETURN_IF_ERROR(group.Barrier().Wait());
  last_epoch_ = std::max<int64_t>(round->epoch(), 1);
  round->completed_ = step;
  return absl::OkStatus();
}

}  // namespace tandem::collectives
