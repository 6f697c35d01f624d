// SPDX-License-Identifier: Apache-2.0
// Elastic training: it continues when processes die, leave or join. All ranks together fit a linear model.
// The processes keep the state in memory. They also write it to a file now and then, and read it at the
// start, in case all of them die at once.
//
//   tandem run --nnodes 1:4 --nproc-per-node 2 --on-failure reform --max-restarts 100
//       --rdzv-backend etcd --rdzv-endpoint etcd:2379 --rdzv-id job -- ./elastic /shared/model 500

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "collectives/elastic/elastic_session.h"

namespace {

using tandem::collectives::ElasticOptions;
using tandem::collectives::ElasticRound;
using tandem::collectives::ElasticSession;
using tandem::collectives::ReduceOp;

constexpr int kInputs = 8, kBatch = 32;
constexpr int64_t kStepsPerCheckpoint = 50;
constexpr float kLearningRate = 0.1f;

struct Model {
  int64_t step = 0;  // completed steps
  std::vector<float> weights = std::vector<float>(kInputs);

  std::string Serialize() const {
    std::string text = absl::StrCat(step);
    for (float weight : weights) absl::StrAppend(&text, " ", weight);
    return text;
  }
  absl::Status Parse(absl::string_view text) {
    std::istringstream in{std::string(text)};
    in >> step;
    for (float& weight : weights) in >> weight;
    return in ? absl::OkStatus() : absl::DataLossError(absl::StrCat("'", text, "' is no model"));
  }
};

// Writes the file atomically: a reader always sees a complete version.
absl::Status WriteCheckpoint(const std::string& path, const Model& model) {
  const std::string unfinished = path + ".new";
  std::error_code error;
  std::ofstream out(unfinished, std::ios::trunc);
  out << model.Serialize();
  out.close();
  if (out) std::filesystem::rename(unfinished, path, error);
  return out && !error ? absl::OkStatus() : absl::UnavailableError(absl::StrCat("cannot write ", path));
}

// Reads the file. No effect if it does not exist.
absl::Status ReadCheckpoint(const std::string& path, Model* model) {
  std::ifstream in(path);
  if (!in) return absl::OkStatus();
  std::stringstream text;
  text << in.rdbuf();
  return model->Parse(text.str());
}

absl::Status Train(const std::string& checkpoint, int64_t last_step) {
  Model model;
  TANDEM_RETURN_IF_ERROR(ReadCheckpoint(checkpoint, &model));
  ElasticOptions options;
  options.completed_step = model.step;
  options.save = [&] { return model.Serialize(); };
  options.load = [&](absl::string_view state) { return model.Parse(state); };
  TANDEM_ASSIGN_OR_RETURN(const auto session, ElasticSession::Create(std::move(options)));
  return session->Run([&](ElasticRound& round) -> absl::Status {
    if (round.rank() == 0) {
      std::printf("epoch %ld: %d ranks go on after step %ld\n", static_cast<long>(round.epoch()),
                  round.world_size(), static_cast<long>(round.last_completed_step()));
      std::fflush(stdout);
    }
    for (int64_t step = round.last_completed_step() + 1; step <= last_step; ++step) {
      // The batch is a function of step and rank, so every rank that computes it gets the same one.
      std::mt19937 random(static_cast<uint32_t>(step * 1000 + round.rank()));
      std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
      std::vector<float> gradient(kInputs + 1);  // the last element is the loss
      for (int n = 0; n < kBatch; ++n) {
        float x[kInputs], error = 0.0f;
        for (int i = 0; i < kInputs; ++i) {
          x[i] = uniform(random);
          error += (model.weights[i] - static_cast<float>(i)) * x[i];
        }
        for (int i = 0; i < kInputs; ++i) gradient[i] += 2.0f * error * x[i] / kBatch;
        gradient[kInputs] += error * error / kBatch;
      }
      TANDEM_RETURN_IF_ERROR(
          round.group()->AllReduce(absl::MakeSpan(gradient), {.op = ReduceOp::kAvg}).Wait());
      for (int i = 0; i < kInputs; ++i) model.weights[i] -= kLearningRate * gradient[i];
      model.step = step;
      TANDEM_RETURN_IF_ERROR(round.CompleteStep(step));
      if (round.rank() != 0) continue;
      if (step % kStepsPerCheckpoint == 0) TANDEM_RETURN_IF_ERROR(WriteCheckpoint(checkpoint, model));
      if (step == last_step) std::printf("step %ld: loss %.6f\n", static_cast<long>(step), gradient[kInputs]);
    }
    return absl::OkStatus();
  });
}

}  // namespace

int main(int argc, char** argv) {
  int64_t last_step = 0;
  if (argc != 3 || !absl::SimpleAtoi(argv[2], &last_step)) {
    std::fprintf(stderr, "usage: elastic CHECKPOINT LAST_STEP\n");
    return 2;
  }
  const absl::Status status = Train(argv[1], last_step);
  if (!status.ok()) std::fprintf(stderr, "elastic: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
