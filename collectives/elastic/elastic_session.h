// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_ELASTIC_ELASTIC_SESSION_H_
#define TANDEM_COLLECTIVES_ELASTIC_ELASTIC_SESSION_H_

// Runs a training loop that continues in the same process when other processes of its job die, are cut off or
// join, like Horovod's elastic run and torchft's reconfigured group. docs/elastic.md explains it.
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
#include "cluster/environment.h"
#include "collectives/elastic/assignment.h"
#include "collectives/elastic/launcher_client.h"
#include "collectives/process_group.h"
#include "rpc/caller.h"

namespace tandem::collectives {

struct ElasticOptions {
  // Serialize and restore the program's state. Run calls them on its thread at the start of a round: `save`
  // in one process that has the state of the last completed step, `load` in the processes that do not have
  // it. Both empty: there is no state.
  std::function<absl::StatusOr<std::string>()> save;
  std::function<absl::Status(absl::string_view)> load;
  // The step whose state the program has when it starts: 0, or its checkpoint's step.
  int64_t completed_step = 0;
  // Limits the time in which a round's processes must connect and agree on the last completed step.
  absl::Duration connect_timeout = absl::Seconds(30);
  // Limits one call to the round's store. The store may have died with the node that served it; recovery from
  // such a failure waits this long.
  absl::Duration store_timeout = absl::Seconds(2);
  // Limits the time from the end of a round until this process has an assignment in another round.
  absl::Duration round_timeout = absl::Seconds(600);
  ProcessGroupOptions group;  // rank, world size, name, epoch and store are filled in
};

// One round of the group, as Run's callback sees it. For use by the callback's thread; group() has the thread
// rules of ProcessGroup.
class ElasticRound {
 public:
  int rank() const { return assignment_.rank; }
  int world_size() const { return assignment_.world_size; }
  int local_rank() const { return assignment_.local_rank; }
  int local_world_size() const { return assignment_.local_world_size; }
  int64_t epoch() const { return assignment_.epoch; }
  int64_t restarts() const { return assignment_.restarts; }
  // The last completed step, whose state all ranks of the round have; 0 before the first.
  int64_t last_completed_step() const { return completed_; }
  ProcessGroup* group() const { return group_.get(); }
  // Identifies this process and the round, for channels that the program opens (rpc::ChannelOptions::caller).
  // With it, parameter servers that outlive rounds reject processes that are still in an earlier round.
  const rpc::Caller& caller() const { return caller_; }

  // Completes `step`, which must be last_completed_step() + 1. Call it when this rank has done the step and
  // holds its state. Blocks for a barrier of the group.
  //
  // - OK: every rank has done the step, and it stays completed on all ranks for the rest of the job.
  // - InvalidArgument: `step` is not the next step; nothing has changed.
  // - Other errors: the round is over for this process. Return the error from the callback; the processes of
  //   the next round decide whether the step is completed.
  //
  // Change the state only after the step's last collective, and then call this at once: a step that fails
  // before this call must leave the state unchanged.
  absl::Status CompleteStep(int64_t step);

 private:
  friend class ElasticSession;
  ElasticRound(Assignment assignment, rpc::Caller caller, int64_t* executed)
      : assignment_(std::move(assignment)), caller_(std::move(caller)), executed_(executed) {}

  const Assignment assignment_;
  const rpc::Caller caller_;
  std::shared_ptr<cluster::Store> store_;
  std::unique_ptr<ProcessGroup> group_;
  int64_t completed_ = 0;
  int64_t* const executed_;  // the session's
};

// Runs a process's part in an elastic group. One per process. Call Run once, from one thread.
class ElasticSession {
 public:
  // Creates a session from the environment that `tandem run` sets (TANDEM_AGENT, TANDEM_ASSIGNMENT,
  // TANDEM_EPOCH, ...). Without TANDEM_AGENT (another launcher, or --on-failure restart) there is one round
  // only, and its failure is Run's. Returns InvalidArgument, which names the variable, for a malformed
  // environment.
  static absl::StatusOr<std::unique_ptr<ElasticSession>> Create(ElasticOptions options);
  // Creates a session with the given first assignment. `agent` may be nullptr: then there is one round only.
  ElasticSession(ElasticOptions options, Assignment first, std::unique_ptr<LauncherClient> agent);
  ~ElasticSession();

  // Runs `body` in one round after the other. In each round it connects the group, brings all processes to
  // the last completed step, and calls `body`. Blocks until `body` has returned OK on all ranks of one round,
  // and then returns OK. Returns an error:
  //
  // - if `body` returns an error although its round is not over: that error.
  // - if the launcher says that the job is over: FailedPrecondition.
  // - if there is no new round within round_timeout: DeadlineExceeded.
  // - if `save` or `load` fails: DataLoss.
  // - if the launcher has died: Unavailable.
  //
  // The last completed step is found as follows. Each process knows the last step that it has done, which is
  // the last one that it passed to CompleteStep. The smallest of these among the processes of the newest
  // earlier round is the last completed step. A step's barrier is passed only after every rank has done the
  // step, so no process, dead or alive, has seen a later step succeed, and all of these processes have done
  // this one. If no process of an earlier round is left, the state is lost with them, and the largest
  // completed_step of the processes counts.
  absl::Status Run(const std::function<absl::Status(ElasticRound&)>& body);

 private:
  // Aborts the round's group when the launcher says that the round is over.
  class Watch;

  absl::Status RunRound(const std::function<absl::Status(ElasticRound&)>& body, const Assignment& assignment,
                        bool* may_go_on);
  absl::Status Connect(ElasticRound* round, Watch* watch);
  // Makes all ranks agree on the last completed step, and sends its state to the ranks that do not have it.
  absl::Status Agree(ElasticRound* round);

  const ElasticOptions options_;
  const Assignment first_;
  const std::unique_ptr<LauncherClient> agent_;
  std::string run_id_, role_ = "worker";  // from the environment, if Create made this
  int64_t executed_;                      // the last step that this process has done
  int64_t last_epoch_ = 0;                // the last round in which it had the group's state; 0: none
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_ELASTIC_ELASTIC_SESSION_H_
