// SPDX-License-Identifier: Apache-2.0
// A model file of reinforcement learning.

#include <memory>
#include <string>
#include <vector>

#include "tests/fuzz/real_files.h"
#include "worker/rl/job/rl_parser.h"
#include "worker/rl/run/model_file.h"

namespace tandem::fuzz {
namespace {

class Model {
 public:
  Model() {
    const auto job = rl::ParseRlJob(
        "name: kept\nenv: pendulum\nalgorithm: ppo\npolicy: {hidden: [8, 4], normalize_observations: true}\n",
        "job");
    TANDEM_CHECK_MSG(job.ok(), job.status().ToString());
    const auto policy = rl::MakePolicy(job->learner);
    TANDEM_CHECK(policy.ok() && rl::SaveModel(*job, **policy, files_.File("model")).ok());
    files_.Add("model");
  }
  const RealFiles& files() const { return files_; }

 private:
  RealFiles files_;
};
const Model& Real() {
  static const Model model;
  return model;
}

}  // namespace

void FuzzModel(Input input) {
  Real().files().Run(input, [](size_t) { (void)rl::LoadModel(Real().files().File("model")); });
}
std::vector<std::string> ModelSeeds() { return Real().files().Seeds(); }

}  // namespace tandem::fuzz
