// The launcher of the chaos test, as small as one can be: it joins rounds, starts and re-forms its workers.
//
//   chaos_launcher STORE_URL HOST WORKERS MIN_NODES MAX_NODES LEASE_MS PROGRAM ARGUMENTS...
//
// It ends with 0 when the job has succeeded, with 3 and one line "ended: REASON" when it has failed.

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "base/logging.h"
#include "base/status.h"
#include "collectives/connect/fenced_store.h"
#include "collectives/elastic/agent_board.h"
#include "collectives/rendezvous/rendezvous.h"
#include "collectives/store/etcd/etcd_store.h"
#include "collectives/store/store_server.h"

extern char** environ;

namespace tandem::collectives {
namespace {

volatile sig_atomic_t told_to_leave = 0;

class Launcher {
 public:
  Launcher(std::string host, int workers, std::vector<std::string> command)
      : host_(std::move(host)), command_(std::move(command)), children_(workers, -1), done_(workers, false) {
    id_ = absl::StrCat(host_, "-", ::getpid());
    board_.OnTrouble([this](AgentBoard::Trouble trouble) {
      absl::MutexLock lock(&mutex_);
      troubles_.push_back(std::move(trouble));
    });
  }
  ~Launcher() { KillAll(); }

  absl::Status Run(const std::string& url, RendezvousOptions rules) {
    TANDEM_ASSIGN_OR_RETURN(EtcdOptions etcd, ParseEtcdUrl(url));
    etcd.call_timeout = rules.lease;
    TANDEM_ASSIGN_OR_RETURN(auto store, EtcdStore::Open(etcd));
    TANDEM_ASSIGN_OR_RETURN(auto rendezvous, MakeRendezvous(store.get(), rules));
    const absl::Time start = absl::Now();
    while (true) {
      Node node;
      node.id = id_;
      node.host = host_;
      TANDEM_ASSIGN_OR_RETURN(auto served, StoreServer::Start(absl::StrCat(host_, ":0")));
      node.store = absl::StrCat(host_, ":", served->port());
      node.processes = {{"worker", static_cast<int>(children_.size())}};
      absl::StatusOr<Round> round = rendezvous->Join(node);
      if (!round.ok() && absl::IsUnavailable(round.status()) && absl::Now() - start < absl::Minutes(100)) {
        LogWarning(round.status().message());
        absl::SleepFor(rules.lease / 4);
        if (told_to_leave != 0) return absl::OkStatus();
        continue;
      }
      TANDEM_RETURN_IF_ERROR(round.status());
      if (served_ != nullptr) (void)EnterEpoch(served_->store(), round->epoch, "launcher");
      served_ = std::move(served);
      TANDEM_RETURN_IF_ERROR(Place(*round));
      TANDEM_ASSIGN_OR_RETURN(const bool over, Watch(rendezvous.get(), *round));
      if (over) return absl::OkStatus();
    }
  }

 private:
  // Tells the living of their places and starts the others.
  absl::Status Place(const Round& round) {
    ++number_;
    // A round took place without this node: what its processes hold is older than what others have counted
    // since, and should those die, must not be taken for the newest.
    if (round.epoch != epoch_ + 1) KillAll();
    epoch_ = round.epoch;
    std::map<std::string, Assignment> places;
    for (size_t i = 0; i < children_.size(); ++i) {
      Assignment a;
      a.number = number_;
      a.epoch = round.epoch;
      a.rank = round.FirstRank("worker") + static_cast<int>(i);
      a.world_size = round.WorldSize("worker");
      a.local_rank = static_cast<int>(i);
      a.local_world_size = static_cast<int>(children_.size());
      a.group_rank = round.group_rank;
      a.restarts = round.restarts;
      a.store = round.nodes[0].store;
      a.master_addr = round.nodes[0].host;
      a.master_port = 1;
      places[absl::StrCat("worker/", i)] = a;
      done_[i] = false;
    }
    TANDEM_RETURN_IF_ERROR(board_.Announce(places));
    for (size_t i = 0; i < children_.size(); ++i) {
      if (children_[i] > 0 && ::waitpid(children_[i], nullptr, WNOHANG) == children_[i]) children_[i] = -1;
      if (children_[i] < 0) Spawn(i, places[absl::StrCat("worker/", i)]);
    }
    return absl::OkStatus();
  }

  void Spawn(size_t i, const Assignment& a) {
    std::vector<std::string> variables = {absl::StrCat("RANK=", a.rank),
                                          absl::StrCat("WORLD_SIZE=", a.world_size),
                                          absl::StrCat("LOCAL_RANK=", a.local_rank),
                                          absl::StrCat("LOCAL_WORLD_SIZE=", a.local_world_size),
                                          absl::StrCat("GROUP_RANK=", a.group_rank),
                                          absl::StrCat("TANDEM_STORE=", a.store),
                                          absl::StrCat("TANDEM_EPOCH=", a.epoch),
                                          absl::StrCat("TANDEM_ASSIGNMENT=", a.number),
                                          absl::StrCat("TANDEM_AGENT=127.0.0.1:", agent_->port())};
    for (char** one = environ; *one != nullptr; ++one) variables.emplace_back(*one);
    std::vector<char*> argv, envp;
    for (std::string& text : command_) argv.push_back(text.data());
    for (std::string& text : variables) envp.push_back(text.data());
    argv.push_back(nullptr);
    envp.push_back(nullptr);
    const pid_t parent = ::getpid();
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(127);
      ::execve(argv[0], argv.data(), envp.data());
      ::_exit(127);
    }
    children_[i] = pid;
  }

  // Until the round is over; true when the job is.
  absl::StatusOr<bool> Watch(Rendezvous* rendezvous, const Round& round) {
    bool finished = false;
    while (true) {
      if (told_to_leave != 0) {
        KillAll();
        (void)rendezvous->Leave();
        return true;
      }
      for (size_t i = 0; i < children_.size(); ++i) {
        int how = 0;
        if (children_[i] < 0 || ::waitpid(children_[i], &how, WNOHANG) != children_[i]) continue;
        children_[i] = -1;
        if (WIFEXITED(how) && WEXITSTATUS(how) == 0) {
          done_[i] = true;
          continue;
        }
        const absl::Status asked = rendezvous->RequestRestart(
            round.epoch, absl::StrCat("worker/", round.FirstRank("worker") + i,
                                      WIFSIGNALED(how) ? absl::StrCat(" was killed by signal ", WTERMSIG(how))
                                                       : absl::StrCat(" ended with ", WEXITSTATUS(how))));
        if (!asked.ok()) LogWarning(asked.message());
      }
      std::vector<AgentBoard::Trouble> troubles;
      {
        absl::MutexLock lock(&mutex_);
        troubles.swap(troubles_);
      }
      for (const AgentBoard::Trouble& trouble : troubles) {
        if (trouble.number != number_) continue;
        (void)rendezvous->RequestRestart(round.epoch, absl::StrCat(trouble.process, ": ", trouble.reason));
      }
      bool all_done = true;
      for (size_t i = 0; i < children_.size(); ++i) all_done = all_done && done_[i];
      if (all_done && !finished) finished = rendezvous->Finish(round.epoch).ok();
      absl::StatusOr<RendezvousEvent> event =
          rendezvous->WaitForEvent(round.epoch, absl::Now() + absl::Milliseconds(20));
      if (event.ok()) {
        LogInfo(absl::StrCat(id_, ": epoch ", round.epoch, " is over: ", event->reason));
        if (event->kind == RendezvousEvent::Kind::kClosed) {
          (void)board_.Close(event->reason);
          KillAll();
          if (event->failed) return absl::AbortedError(event->reason);
          return true;
        }
        TANDEM_RETURN_IF_ERROR(board_.RoundOver(number_, event->reason));
        return false;
      }
      if (absl::IsDeadlineExceeded(event.status())) continue;
      if (!absl::IsUnavailable(event.status())) return event.status();
      // The others take this node for dead, or etcd was away for all: its processes must count no more, but
      // if nobody has gone on without them, theirs is the state to go on from.
      LogWarning(absl::StrCat(id_, ": ", event.status().message()));
      TANDEM_RETURN_IF_ERROR(board_.RoundOver(number_, event.status().message()));
      return false;
    }
  }

  void KillAll() {
    for (pid_t& child : children_) {
      if (child < 0) continue;
      ::kill(child, SIGKILL);
      ::waitpid(child, nullptr, 0);
      child = -1;
    }
  }

  const std::string host_;
  std::string id_;
  std::vector<std::string> command_;
  std::vector<pid_t> children_;
  std::vector<bool> done_;
  int64_t number_ = 0, epoch_ = 0;
  std::unique_ptr<StoreServer> served_;
  absl::Mutex mutex_;
  std::vector<AgentBoard::Trouble> troubles_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<StoreServer> agent_ = StoreServer::Start("127.0.0.1:0").value();
  AgentBoard board_{agent_->store()};
};

int Main(int argc, char** argv) {
  int workers = 0, lease = 0;
  RendezvousOptions rules;
  if (argc < 8 || !absl::SimpleAtoi(argv[3], &workers) || !absl::SimpleAtoi(argv[4], &rules.min_nodes) ||
      !absl::SimpleAtoi(argv[5], &rules.max_nodes) || !absl::SimpleAtoi(argv[6], &lease)) {
    return 2;
  }
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::signal(SIGTERM, [](int) { told_to_leave = 1; });
  rules.lease = absl::Milliseconds(lease);
  rules.last_call = absl::Seconds(3);
  rules.join_timeout = absl::Seconds(60);
  rules.max_restarts = 1000000;
  Launcher launcher(argv[2], workers, std::vector<std::string>(argv + 7, argv + argc));
  const absl::Status status = launcher.Run(argv[1], rules);
  if (status.ok()) return 0;
  std::fprintf(stderr, "ended: %s\n", status.ToString().c_str());
  return 3;
}

}  // namespace
}  // namespace tandem::collectives

int main(int argc, char** argv) { return tandem::collectives::Main(argc, argv); }
