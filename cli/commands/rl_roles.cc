// SPDX-License-Identifier: Apache-2.0
// tandem rl as a process of a job: learner, actor, replay or inference.

#include "cli/commands/rl_roles.h"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/command_context.h"
#include "base/logging.h"
#include "base/status.h"
#include "cluster/process.h"
#include "worker/nn/gemm.h"
#include "worker/rl/learner/registry.h"
#include "worker/rl/roles/actor_role.h"
#include "worker/rl/roles/experience_server.h"
#include "worker/rl/roles/inference_role.h"
#include "worker/rl/roles/learner_role.h"
#include "worker/rl/roles/role_job.h"

namespace tandem::cli {
namespace {

constexpr absl::Duration kStoreTimeout = absl::Seconds(60);

// Starts a server and serves until a signal. A signal while it starts, when it may wait for others, ends the
// process.
template <typename Role>
absl::Status ServeRole(const rl::RlSpec& spec, const cluster::ListenOptions& listen, rl::RoleJob* job) {
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<Role> server, Role::Start(spec, listen, job));
  job->member().EndOnSignals();
  LogInfo(absl::StrCat("serving at ", server->address()));
  (void)job->member().AwaitEnd();
  server->Stop();
  return absl::OkStatus();
}

int Learn(const rl::RlSpec& spec, const RlRoleOptions& options, rl::RoleJob* job) {
  const absl::StatusOr<rl::RlReport> report = rl::RunLearnerRole(spec, options.run, job);
  if (!report.ok()) return Report("rl", report.status());
  if (job->environment().rank == 0) {
    std::fputs(rl::FormatRlReport({*report}, 1).c_str(), stdout);
    if (!options.report.empty()) {
      const absl::Status written = rl::WriteRlReport({*report}, 1, options.report);
      if (!written.ok()) return Report("rl", written);
    }
  }
  if (!report->failure.ok()) return Report("rl", report->failure);
  return report->interrupted ? kRlAskedToStop : 0;
}

}  // namespace

int RunRlRole(const rl::RlSpec& spec, const RlRoleOptions& options) {
  const rl::AlgorithmKind* const algorithm = rl::Algorithms().Find(spec.learner.algorithm.kind);
  if (algorithm != nullptr && !algorithm->build.has_roles) {
    return Report("rl", absl::InvalidArgumentError(absl::StrCat(
                            "the algorithm '", algorithm->name,
                            "' acts and learns in one process; run `tandem rl` without `tandem run`, or use "
                            "impala or dqn, which have roles")));
  }
  // All processes of a job have the same flags, so a mistake ends them all at once.
  if (!options.listen.listen.empty()) {
    const absl::Status valid =
        cluster::ChooseAddress(options.listen, /*earlier=*/"", /*store=*/"", /*member=*/"").status();
    if (!valid.ok()) return Report("rl", valid);
  }
  // Servers obey their launcher only, since the learners may still need them.
  const char* const variable = std::getenv("TANDEM_ROLE");
  const std::string_view role = variable == nullptr ? "" : variable;
  const bool serves = role == rl::kReplayRole || role == rl::kInferenceRole;
  const bool learns = role == rl::kLearnerRole;
  absl::StatusOr<std::unique_ptr<cluster::Process>> process =
      cluster::Process::Start({.only_launcher = serves, .exit_code = learns ? kRlAskedToStop : 0});
  if (!process.ok()) return Report("rl", process.status());
  absl::StatusOr<std::unique_ptr<rl::RoleJob>> job = rl::RoleJob::Open(kStoreTimeout, process->get());
  if (!job.ok()) return Report("rl", job.status());
  if (!serves) (*process)->StopOnSignals(options.stop);
  int code = 0;
  if ((*job)->is(rl::kLearnerRole)) {
    code = Learn(spec, options, job->get());
  } else if ((*job)->is(rl::kActorRole)) {
    worker::UseOneBlasThread();
    code = Report("rl", rl::RunActorRole(spec, job->get(), *options.stop));
  } else if ((*job)->is(rl::kInferenceRole)) {
    worker::UseOneBlasThread();
    code = Report("rl", ServeRole<rl::InferenceRole>(spec, options.listen, job->get()));
  } else {
    code = Report("rl", ServeRole<rl::ExperienceServer>(spec, options.listen, job->get()));
  }
  (*job)->Close();
  return code;
}

}  // namespace tandem::cli
