// SPDX-License-Identifier: Apache-2.0
#include "worker/rl/job/rl_schema.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "worker/job/describe_kind.h"
#include "worker/rl/envs/registry.h"
#include "worker/rl/learner/impala_update.h"
#include "worker/rl/learner/registry.h"

namespace tandem::rl {
namespace {

using worker::DescribeKind;
using worker::DescribeKindFields;
using worker::Fields;

// Declares a group with a required kind.
template <typename Registry>
void DescribeRequired(Fields& f, const char* name, const char* what, const Registry& registry,
                      typename Registry::Config& config) {
  const bool given = f.Group(name, "kind", "", [&](Fields& g) {
    if (!DescribeKind(g, registry, what, config) && g.parsing()) {
      g.Wrong("kind", absl::StrCat("is missing: it is one of ", absl::StrJoin(registry.names(), ", ")));
    }
    DescribeKindFields(g, registry, config);
  });
  if (!given && f.parsing()) {
    f.Wrong(name, absl::StrCat("is missing: write '", name, ": {kind: ...}' with one of ",
                               absl::StrJoin(registry.names(), ", ")));
  }
}

// The seeds as the file has them: one for all purposes, and those that differ.
void DescribeSeeds(Fields& f, Seeds& seeds) {
  constexpr double kMaxSeed = static_cast<double>(kGreatestSeed);
  if (!f.reading() && seeds.policy == seeds.environment && seeds.evaluation == seeds.environment) {
    f.Integer("all", &seeds.environment, Between(0, kMaxSeed), "");
    return;
  }
  uint64_t all = 1;
  if (f.reading()) {
    const bool given = f.Integer("all", &all, Between(0, kMaxSeed),
                                 "seed of everything below that has none of "
                                 "its own; `seed: 7` is short for it");
    if (given) seeds = {.environment = all, .policy = all, .evaluation = all};
  }
  f.Integer("environment", &seeds.environment, Between(0, kMaxSeed), "of first states and random steps");
  f.Integer("policy", &seeds.policy, Between(0, kMaxSeed),
            "of the first parameters, exploration, the order of minibatches and samples from replay");
  f.Integer("evaluation", &seeds.evaluation, Between(0, kMaxSeed), "of the environments of the evaluation");
}

// Sizes that are each in range may have no memory together.
void CheckMemory(Fields& f, const LearnerOptions& options, const EnvironmentSpec& environment) {
  constexpr double kUnrollBytes = 4.0 * (1 << 30), kReplayBytes = 64.0 * (1 << 30);
  const double observation = 4.0 * static_cast<double>(environment.observation_size);
  const AlgorithmOptions& o = options.algorithm;
  if (o.kind == "dqn") {
    const double bytes = o.replay_size * (2 * observation + 32);
    if (bytes > kReplayBytes) {
      f.Wrong("algorithm",
              absl::StrCat("keeps 'replay_size' transitions of ", 2 * observation + 32, " bytes: ", bytes,
                           " bytes; at most ", kReplayBytes, " are possible"));
    }
    return;
  }
  const double unroll = o.unroll * (2 * observation + 32);
  if (o.kind == "impala") {
    const bool paced = IsPaced(options);
    const auto waiting = static_cast<double>(UnrollTableOptions(options, environment).max_items);
    if (waiting * unroll > kReplayBytes) {
      f.Wrong("algorithm", absl::StrCat("lets ", paced ? "('max_lag' + 1) x 'batch'" : "'queue'",
                                        " unrolls of ", unroll, " bytes wait: ", waiting * unroll,
                                        " bytes; at most ", kReplayBytes, " are possible"));
    }
  }
  const double bytes = unroll * static_cast<double>(options.environments);
  if (bytes > kUnrollBytes) {
    f.Wrong("algorithm",
            absl::StrCat("has unrolls of ", bytes, " bytes ('unroll' times 'actors.envs' steps of ",
                         2 * observation + 32, " bytes); at most ", kUnrollBytes, " are possible"));
  }
}

void CheckTogether(Fields& f, const RlSpec& job) {
  const LearnerOptions& options = job.learner;
  const absl::StatusOr<std::unique_ptr<Environment>> environment = MakeEnvironment(options.environment);
  const AlgorithmKind* const algorithm = Algorithms().Find(options.algorithm.kind);
  if (!environment.ok() || algorithm == nullptr) return;  // reported already
  const absl::Status supported = algorithm->build.supports((*environment)->spec());
  if (!supported.ok()) {
    f.Wrong("algorithm", absl::StrCat("cannot handle the environment '", options.environment.kind,
                                      "': ", supported.message()));
  }
  if (!algorithm->build.has_actors && (options.actors > 1 || options.lockstep || job.remote_inference)) {
    f.Wrong("actors", absl::StrCat("has 'count', 'lockstep' or 'inference', but the algorithm '",
                                   algorithm->name, "' acts by itself, in 'envs' copies; impala has actors"));
  }
  CheckMemory(f, options, (*environment)->spec());
  const uint64_t transitions =
      static_cast<uint64_t>(options.algorithm.unroll) * static_cast<uint64_t>(options.environments);
  if (options.algorithm.kind == "ppo" && transitions < static_cast<uint64_t>(options.algorithm.minibatches)) {
    f.Wrong("algorithm", absl::StrCat("divides ", transitions, " steps ('unroll' times 'actors.envs') into ",
                                      options.algorithm.minibatches,
                                      " 'minibatches'; there must be at least one step in each"));
  }
}

}  // namespace

void DescribeRlJob(Fields& f, RlSpec& job) {
  if (f.reading()) {
    // The parser has merged that file already; what is left of it comes from an override.
    std::string extended;
    if (f.Text(
            "extend", &extended,
            "another job file, of which this one gives only what differs: mappings are merged, other values "
            "replaced")) {
      f.Wrong("extend", "can only be given in a job file");
    }
  }
  f.Text("name", &job.name, "name of the job: letters, digits, `_`, `-` and `.`");
  if (!worker::IsJobName(job.name)) {
    f.Wrong("name", absl::StrCat("is '", job.name, "'; it may have letters, digits, '_', '-' and '.'"));
  }
  LearnerOptions& learner = job.learner;
  DescribeRequired(f, "env", "which environment; required", Environments(), learner.environment);
  f.Group("policy", nullptr, "", [&](Fields& g) {
    g.Wholes("hidden", &learner.policy.hidden, Between(1, 1 << 16), "widths of the hidden layers");
    // The initial values are orthogonal, which costs the square of a width for each row.
    constexpr double kMostWeights = 1 << 24;
    double weights = 0, in = 0;
    for (const int width : learner.policy.hidden) weights += std::exchange(in, width) * width;
    if (weights > kMostWeights) {
      g.Wrong("hidden", absl::StrCat("means ", weights, " weights between hidden layers; at most ",
                                     kMostWeights, " are possible"));
    }
    g.Choice("activation", &learner.policy.activation, {"relu", "tanh"}, "of hidden layers");
    g.Bool("normalize_observations", &learner.policy.normalize_observations,
           "shift and scale each number of an observation by its running mean and deviation, which are saved "
           "with the model");
  });
  DescribeRequired(f, "algorithm", "which algorithm; required", Algorithms(), learner.algorithm);
  f.Group("actors", "envs", "", [&](Fields& g) {
    g.Integer("envs", &learner.environments, Between(1, 65536),
              "copies of the environment that step together, in each actor");
    g.Integer("count", &learner.actors, Between(1, 4096),
              "actors, each on a thread of its own; `impala` only");
    g.Bool("lockstep", &learner.lockstep,
           "actors and learner take turns on one thread, so that runs have the same bits each time; `impala` "
           "only");
    int inference = job.remote_inference ? 1 : 0;
    g.OneOf(
        "inference", &inference, {"local", "server"},
        "where actions are chosen: in each actor, or in the processes of role `inference`, which batch the "
        "observations of all actors; `impala` under `tandem run` only");
    job.remote_inference = inference == 1;
  });
  f.Group("seed", "all", "", [&](Fields& g) { DescribeSeeds(g, learner.seeds); });
  f.Group("stop", "env_steps", "", [&](Fields& g) {
    g.Integer("env_steps", &learner.env_steps, Between(1, 1e15),
              "the run ends with the update that reaches this many steps of all copies, and the rates that "
              "change end here");
    double mean_return = job.mean_return.value_or(0);
    if (g.reading() || job.mean_return.has_value()) {
      const bool given =
          g.Real("mean_return", &mean_return, {},
                 "the run ends before when the last 100 episodes reach this return on average; "
                 "by default it does not");
      if (given) job.mean_return = mean_return;
    }
  });
  f.Group("evaluation", "episodes", "", [&](Fields& g) {
    g.Integer("episodes", &job.evaluation_episodes, Between(0, 65536),
              "fresh episodes of the greedy policy after the training, all at once; 0: no evaluation");
  });
  if (f.reading() || !job.model_file.empty()) {
    f.Path("model", &job.model_file,
           "file to which the model is saved at the end; `runs/NAME/model.safetensors` by default");
  }
  f.Group("checkpoint", "every_seconds", "", [&](Fields& g) {
    if (g.reading() || !job.checkpoint_file.empty()) {
      g.Path("file", &job.checkpoint_file,
             "file with the state of the run, from which `--resume` goes on; `checkpoint.safetensors` beside "
             "the "
             "model by default");
    }
    double every = absl::ToDoubleSeconds(job.checkpoint_every);
    g.Real("every_seconds", &every, Between(0, 86400),
           "time between checkpoints; 0: only when the run is asked to stop, and at the end");
    job.checkpoint_every = absl::Seconds(every);
  });
  double log_every = absl::ToDoubleSeconds(job.log_every);
  f.Real("log_every_seconds", &log_every, Between(1e-3, 86400),
         "time between progress lines and between records for TensorBoard");
  job.log_every = absl::Seconds(log_every);
  if (!f.parsing()) return;
  if (job.model_file.empty()) job.model_file = absl::StrCat("runs/", job.name, "/model.safetensors");
  if (job.checkpoint_file.empty()) {
    const size_t slash = job.model_file.rfind('/');
    job.checkpoint_file = absl::StrCat(slash == std::string::npos ? "" : job.model_file.substr(0, slash + 1),
                                       "checkpoint.safetensors");
  }
  CheckTogether(f, job);
}

}  // namespace tandem::rl
