#ifndef TANDEM_COLLECTIVES_ELASTIC_ELASTIC_SESSION_H_
#define TANDEM_COLLECTIVES_ELASTIC_ELASTIC_SESSION_H_

// A training loop that goes on when processes of its job die, are cut off or join, in the process that it
// runs in: Horovod's elastic run, torchft's reconfigured group. docs/elastic.md.
//
//   ElasticOptions options;
//   options.save = [&] { return model.Serialize(); };
//   options.load = [&](absl::string_view state) { return model.Parse(state); };
//   TANDEM_ASSIGN_OR_RETURN(auto session, ElasticSession::Create(options));
//   return session->Run([&](ElasticRound& round) -> absl::Status {
//     for (int64_t step = round.last_completed_step() + 1; step <= kSteps; ++step) {
//       Gradients g = model.Gradients(DataOf(step, round.rank(), round.world_size()));
//       TANDEM_RETURN_IF_ERROR(round.group()->AllReduce(absl::MakeSpan(g), {.op = ReduceOp::kAvg}).Wait());
//       model.Apply(g);
//       TANDEM_RETURN_IF_ERROR(round.CompleteStep(step));
//     }
//     return absl::OkStatus();
//   });

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "collectives/elastic/assignment.h"
#include "collectives/elastic/launcher_client.h"
#include "collectives/environment.h"
#include "collectives/process_group.h"
#include "rpc/caller.h"

namespace tandem::collectives {

struct ElasticOptions {
  // The program's state as bytes, and back. Called between rounds, in Run's thread: `save` in one process
  // that has the state of the last completed step, `load` in those that have not. Both empty: there is no
  // state.
  std::function<absl::StatusOr<std::string>()> save;
  std::function<absl::Status(absl::string_view)> load;
  // The step whose state the program has by itself when it starts: 0, or that of its checkpoint.
  int64_t completed_step = 0;
  absl::Duration connect_timeout = absl::Seconds(30);  // of a round's processes, to meet and agree
  // Of a call to the round's store, which may have died with the node that served it: that much of a
  // failure's cost is waiting for it.
  absl::Duration store_timeout = absl::Seconds(2);
  // From the end of a round until the launcher gives this process a place in another.
  absl::Duration round_timeout = absl::Seconds(600);
  ProcessGroupOptions group;  // rank, world size, name, epoch and store are filled in
};

// One round of the group, as the callback sees it. For the thread that runs the callback; group() as
// ProcessGroup says.
class ElasticRound {
 public:
  int rank() const { return assignment_.rank; }
  int world_size() const { return assignment_.world_size; }
  int local_rank() const { return assignment_.local_rank; }
  int local_world_size() const { return assignment_.local_world_size; }
  int64_t epoch() const { return assignment_.epoch; }
  int64_t restarts() const { return assignment_.restarts; }
  // All ranks of the round have the state of this step; 0 before the first.
  int64_t last_completed_step() const { return completed_; }
  ProcessGroup* group() const { return group_.get(); }
  // This process's place in the round, for channels that it opens (rpc::ChannelOptions::caller): parameter
  // servers that outlive rounds then refuse who was left behind in an earlier one.
  const rpc::Caller& caller() const { return caller_; }

  // Every rank has done `step`, which must follow last_completed_step(), and holds its state. Blocks for a
  // barrier of the group. After OK the step counts, on all ranks, for ever. After an error the round is over
  // for this process: return it from the callback; whether the step counts is settled by those who go on.
  // InvalidArgument for a step out of turn: nothing has happened.
  //
  // Change the state only after the step's last collective, and then call this at once: a step that ends with
  // an error before it must leave the state as it was.
  absl::Status CompleteStep(int64_t step);

 private:
  friend class ElasticSession;
  ElasticRound(Assignment assignment, rpc::Caller caller, int64_t* executed)
      : assignment_(std::move(assignment)), caller_(std::move(caller)), executed_(executed) {}

  const Assignment assignment_;
  const rpc::Caller caller_;
  std::shared_ptr<Store> store_;
  std::unique_ptr<ProcessGroup> group_;
  int64_t completed_ = 0;
  int64_t* const executed_;  // the session's
};

// One per process. Run is for one thread, once.
class ElasticSession {
 public:
  // From the environment that `tandem run` sets (TANDEM_AGENT, TANDEM_ASSIGNMENT, TANDEM_EPOCH, ... ). Under
  // another launcher, which has no agent, there is one round: its failure is Run's. InvalidArgument names the
  // variable.
  static absl::StatusOr<std::unique_ptr<ElasticSession>> Create(ElasticOptions options);
  // With everything given. `agent` may be nullptr.
  ElasticSession(ElasticOptions options, Assignment first, std::unique_ptr<LauncherClient> agent);
  ~ElasticSession();

  // Connects the group, brings all its processes to the last completed step, calls `body`; again for each new
  // round, until `body` has returned OK on all ranks of one. An error that `body` returns while its round
  // goes on ends Run, as do: FailedPrecondition (the job is over, says the launcher), DeadlineExceeded (no
  // new round within round_timeout), errors of `save` and `load`, and the launcher's death (Unavailable).
  //
  // Which step is the last completed one: each process knows the last step that it has done (CompleteStep was
  // called). The least of these among the processes of the newest earlier round counts; as that step's
  // barrier is passed only when all have done it, no process, dead or alive, has ever seen a later one
  // succeed, and all have done it. If nobody of an earlier round is left, the state is lost with them, and
  // the greatest completed_step that a process brings counts.
  absl::Status Run(const std::function<absl::Status(ElasticRound&)>& body);

 private:
  // Ends the round's group when the launcher says that the round is over.
  class Watch;

  absl::Status RunRound(const std::function<absl::Status(ElasticRound&)>& body, const Assignment& assignment,
                        bool* may_go_on);
  absl::Status Connect(ElasticRound* round, Watch* watch);
  // Brings all ranks to the same step.
  absl::Status Agree(ElasticRound* round);

  const ElasticOptions options_;
  const Assignment first_;
  const std::unique_ptr<LauncherClient> agent_;
  std::string run_id_, role_ = "worker";  // where the environment says so
  int64_t executed_;                      // the last step that this process has done
  int64_t last_epoch_ = 0;                // in which it had the group's state
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_ELASTIC_ELASTIC_SESSION_H_
