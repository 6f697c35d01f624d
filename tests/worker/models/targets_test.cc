// SPDX-License-Identifier: Apache-2.0
// The kernels are compiled for several instruction sets, but a machine normally runs only the best one that
// it supports. This test runs every supported one and compares its results with those of the best.

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "hwy/highway.h"
#include "tests/worker/models/normals.h"
#include "worker/models/model.h"
#include "worker/nn/dense_optimizer.h"
#include "worker/nn/loss.h"

namespace tandem::worker {
namespace {

// All results of a training step.
std::map<std::string, std::vector<float>> Step(const std::string& kind, int num_sparse, int dim) {
  constexpr size_t kBatch = 19;
  ModelOptions options;
  options.kind = kind;
  options.num_dense = 13;
  options.num_sparse = num_sparse;
  options.dim = dim;
  options.hidden = {37, 16};
  options.bottom = {21};
  options.dropout = 0.3f;
  if (kind == "dcn_vector") {
    options.kind = "dcn";
    options.cross = "vector";
    options.batch_norm = "local";
  }
  const auto model = *CreateModel(options);
  const std::vector<float> dense = Normals(kBatch * 13, 1, 0.5),
                           embeddings = Normals(kBatch * num_sparse * dim, 2, 0.5),
                           wide = Normals(kBatch * num_sparse, 3, 0.5);
  const ModelInput input{
      .batch = kBatch, .dense = dense.data(), .embeddings = embeddings.data(), .wide = wide.data()};
  std::vector<float> labels(kBatch), logits(kBatch), d_logits(kBatch), d_embeddings(embeddings.size()),
      d_wide(wide.size());
  for (size_t b = 0; b < kBatch; b += 3) labels[b] = 1.0f;
  model->Forward(input, /*training=*/true, 7, absl::MakeSpan(logits));
  const double loss = BinaryCrossEntropy(logits, labels, 1.0f, absl::MakeSpan(d_logits));
  model->Backward(input, d_logits, {d_embeddings.data(), nullptr, d_wide.data()}, [](size_t, size_t) {});
  std::vector<float> gradients(model->gradients().begin(), model->gradients().end());
  std::map<std::string, std::vector<float>> results{
      {"loss", {static_cast<float>(loss)}}, {"logits", logits}, {"d_logits", d_logits},
      {"d_embeddings", d_embeddings},       {"d_wide", d_wide}, {"gradients", gradients}};
  for (const char* optimizer_kind : {"sgd", "momentum", "adagrad", "adamw"}) {
    DenseOptimizerOptions optimizer_options;
    optimizer_options.kind = optimizer_kind;
    optimizer_options.weight_decay = 0.01f;
    optimizer_options.initial_accumulator = 0.1f;
    // Otherwise Adam's step is a sign, which can flip with the last bit.
    optimizer_options.epsilon = 1e-3f;
    auto optimizer = *DenseOptimizer::Create(optimizer_options, model->blocks());
    std::vector<float> parameters(model->parameters().begin(), model->parameters().end());
    for (int i = 0; i < 2; ++i) optimizer->Step(0.01f, gradients, absl::MakeSpan(parameters));
    results[optimizer_kind] = parameters;
  }
  return results;
}

TEST(TargetsTest, EveryInstructionSetGivesTheSameResults) {
  const int64_t targets = hwy::SupportedTargets() & HWY_TARGETS;
  ASSERT_NE(targets, 0);
  std::vector<std::string> kinds = ModelKinds();
  kinds.push_back("dcn_vector");  // the vector loops that no kind uses by default
  for (const std::string& kind : kinds) {
    for (const auto& [num_sparse, dim] : {std::pair{26, 16}, {4, 20}, {9, 3}}) {
      const auto best = Step(kind, num_sparse, dim);
      for (int64_t left = targets; left != 0; left &= left - 1) {
        const int64_t target = left & -left;
        hwy::SetSupportedTargetsForTest(target);
        hwy::GetChosenTarget().DeInit();
        const auto results = Step(kind, num_sparse, dim);
        for (const auto& [name, expected] : best) {
          const std::vector<float>& actual = results.at(name);
          ASSERT_EQ(actual.size(), expected.size());
          for (size_t i = 0; i < actual.size(); ++i) {
            ASSERT_NEAR(actual[i], expected[i], 1e-4 * (1 + std::abs(expected[i])))
                << kind << " dim " << dim << " on " << hwy::TargetName(target) << ": " << name << "[" << i
                << "]";
          }
        }
      }
      hwy::SetSupportedTargetsForTest(0);
      hwy::GetChosenTarget().DeInit();
    }
  }
}

}  // namespace
}  // namespace tandem::worker
