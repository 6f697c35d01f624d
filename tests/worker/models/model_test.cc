// SPDX-License-Identifier: Apache-2.0
// Tests the contracts of all kinds of models, except gradients: errors, determinism, and that they learn.

#include "worker/models/model.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "worker/nn/dense_optimizer.h"
#include "worker/nn/loss.h"

namespace tandem::worker {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

ModelOptions Options(const std::string& kind) {
  ModelOptions options;
  options.kind = kind;
  options.num_dense = 3;
  options.num_sparse = 4;
  options.dim = 8;
  options.hidden = {16, 8};
  options.bottom = {8};
  return options;
}

std::string Refusal(const ModelOptions& options) {
  const auto model = CreateModel(options);
  EXPECT_EQ(model.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(model.status().message());
}

// A checkpoint from somebody else says any sizes. No memory is allocated for them.
TEST(ModelTest, MoreWeightsThanACheckpointCanHaveAreRefusedBeforeAnyIsAllocated) {
  for (const std::string& kind : ModelKinds()) {
    ModelOptions options = Options(kind);
    const auto model = CreateModel(options);
    TANDEM_ASSERT_OK(model);
    const auto parameters = static_cast<int64_t>((*model)->parameters().size());
    options.max_parameters = parameters;
    TANDEM_EXPECT_OK(CreateModel(options).status());
    if (kind == "lr" || kind == "fm") continue;
    options.max_parameters = parameters / 2;
    EXPECT_THAT(Refusal(options), HasSubstr("dense parameters in the checkpoint")) << kind;
    options = Options(kind);
    options.hidden = std::vector<int>(100000, 65536);
    EXPECT_THAT(Refusal(options), AllOf(HasSubstr("weights and more"), HasSubstr("model.hidden"))) << kind;
    options.hidden = {20000, 30000};
    EXPECT_THAT(Refusal(options), HasSubstr("at most 536870912 are possible")) << kind;
  }
  ModelOptions options = Options("dcn");
  options.num_sparse = 1000;
  options.dim = 4096;
  options.cross_layers = 64;
  EXPECT_THAT(Refusal(options), HasSubstr("weights and more"));
  options = Options("dlrm");
  options.bottom = {65536, 65536};
  EXPECT_THAT(Refusal(options), HasSubstr("weights and more"));
}

TEST(ModelTest, RefusalsNameTheField) {
  ModelOptions options = Options("deepfn");
  EXPECT_THAT(Refusal(options), HasSubstr("lr, fm, dnn, wide_deep, deepfm, dcn, dlrm"));
  options = Options("lr");
  options.num_dense = options.num_sparse = 0;
  EXPECT_THAT(Refusal(options), HasSubstr("neither sparse nor dense"));
  options = Options("dcn");
  options.dim = 0;
  EXPECT_THAT(Refusal(options), HasSubstr("model.dim is 0"));
  options = Options("dcn");
  options.hidden = {8, 0};
  EXPECT_THAT(Refusal(options), HasSubstr("model.hidden"));
  options = Options("dlrm");
  options.bottom = {-1};
  EXPECT_THAT(Refusal(options), HasSubstr("model.bottom"));
  options = Options("dcn");
  options.cross_layers = 0;
  EXPECT_THAT(Refusal(options), HasSubstr("model.cross_layers"));
  options = Options("dcn");
  options.cross = "tensor";
  EXPECT_THAT(Refusal(options), HasSubstr("model.cross is 'tensor'; it must be one of matrix, vector"));
  options = Options("dlrm");
  options.interaction = "sum";
  EXPECT_THAT(Refusal(options), HasSubstr("model.interaction is 'sum'; it must be one of dot, cat"));
  options = Options("dnn");
  options.batch_norm = "yes";
  EXPECT_THAT(Refusal(options), HasSubstr("model.batch_norm is 'yes'; it must be one of none, local, sync"));
  options = Options("dnn");
  options.batch_norm_momentum = 0.0f;
  EXPECT_THAT(Refusal(options), HasSubstr("model.batch_norm_momentum"));
  options = Options("dnn");
  options.batch_norm_epsilon = 0.0f;
  EXPECT_THAT(Refusal(options), HasSubstr("model.batch_norm_epsilon"));
  options = Options("wide_deep");
  options.dropout = 1.0f;
  EXPECT_THAT(Refusal(options), HasSubstr("model.dropout"));
  options = Options("wide_deep");
  options.num_dense = -1;
  EXPECT_THAT(Refusal(options), HasSubstr("model.num_dense"));
  options = Options("wide_deep");
  options.num_sparse = 100000;
  options.dim = 4096;
  EXPECT_THAT(Refusal(options), HasSubstr("num_sparse * dim"));
  for (const char* kind : {"fm", "deepfm", "dlrm"}) {
    options = Options(kind);
    options.num_sparse = 0;
    EXPECT_THAT(Refusal(options), HasSubstr(kind));
  }
}

// A click log with its embedding rows in this process, as the parameter servers would store them. Its logit
// is the sum of an effect per id and feature, the product of one pair of features, and a dense effect.
class Trainer {
 public:
  explicit Trainer(const ModelOptions& options) : options_(options), model_(*CreateModel(options)) {
    optimizer_ = *DenseOptimizer::Create({.kind = "adam"}, model_->blocks());
    CounterRandom random(3, 3);
    rows_.resize(kIds * options.num_sparse * options.dim);
    for (float& v : rows_) v = static_cast<float>(random.Normal() * 0.1);
    wide_rows_.resize(kIds * options.num_sparse);
  }

  void Train(int steps) {
    for (int step = 0; step < steps; ++step) {
      MakeBatch(step);
      model_->Forward(input_, /*training=*/true, step, absl::MakeSpan(logits_));
      std::vector<float> d_logits(kBatch);
      losses_.push_back(BinaryCrossEntropy(logits_, labels_, 1.0f / kBatch, absl::MakeSpan(d_logits)));
      std::vector<float> d_embeddings(embeddings_.size()), d_wide(wide_.size());
      InputGradients d_input;
      if (model_->NeedsEmbeddings()) d_input.embeddings = d_embeddings.data();
      if (model_->NeedsWide()) d_input.wide = d_wide.data();
      model_->Backward(input_, d_logits, d_input, [](size_t, size_t) {});
      optimizer_->Step(0.01f, model_->gradients(), model_->parameters());
      for (size_t k = 0; k < ids_.size(); ++k) {
        for (int i = 0; i < options_.dim; ++i)
          rows_[ids_[k] * options_.dim + i] -= 4.0f * d_embeddings[k * options_.dim + i];
        wide_rows_[ids_[k]] -= 4.0f * d_wide[k];
      }
    }
  }

  double TestAuc() {
    std::vector<std::pair<float, float>> scored;
    for (int step = 1000000; step < 1000020; ++step) {
      MakeBatch(step);
      model_->Forward(input_, /*training=*/false, 0, absl::MakeSpan(logits_));
      for (size_t b = 0; b < kBatch; ++b) scored.emplace_back(logits_[b], labels_[b]);
    }
    // The number of pairs in the right order; a tie counts one half.
    double pairs = 0, positives = 0, above = 0;
    for (const auto& [score, label] : scored) positives += label;
    above = positives;
    std::sort(scored.begin(), scored.end());
    for (size_t begin = 0, end; begin < scored.size(); begin = end) {
      double tied_positives = 0;
      for (end = begin; end < scored.size() && scored[end].first == scored[begin].first; ++end) {
        tied_positives += scored[end].second;
      }
      const double negatives = static_cast<double>(end - begin) - tied_positives;
      above -= tied_positives;
      pairs += negatives * (above + 0.5 * tied_positives);
    }
    return pairs / (positives * (scored.size() - positives));
  }

  const std::vector<double>& losses() const { return losses_; }
  std::vector<float> parameters() const { return {model_->parameters().begin(), model_->parameters().end()}; }

 private:
  static constexpr size_t kBatch = 128;
  static constexpr size_t kIds = 20;

  void MakeBatch(uint64_t stream) {
    CounterRandom random(17, stream);
    const size_t features = options_.num_sparse;
    ids_.resize(kBatch * features);
    labels_.resize(kBatch);
    logits_.resize(kBatch);
    dense_.resize(kBatch * options_.num_dense);
    for (size_t b = 0; b < kBatch; ++b) {
      double logit = 0;
      for (size_t f = 0; f < features; ++f) {
        const size_t id = random.Below(kIds);
        ids_[b * features + f] = f * kIds + id;
        logit += 1.2 * CounterRandom(1, f * kIds + id).Normal();
      }
      if (features > 1) logit += (ids_[b * features] % 2 == ids_[b * features + 1] % 2) ? 1.0 : -1.0;
      for (int i = 0; i < options_.num_dense; ++i) {
        dense_[b * options_.num_dense + i] = static_cast<float>(random.Normal());
        logit += dense_[b * options_.num_dense + i];
      }
      labels_[b] = random.UniformDouble() < 1 / (1 + std::exp(-logit)) ? 1.0f : 0.0f;
    }
    embeddings_.resize(ids_.size() * options_.dim);
    wide_.resize(ids_.size());
    for (size_t k = 0; k < ids_.size(); ++k) {
      std::copy_n(&rows_[ids_[k] * options_.dim], options_.dim, &embeddings_[k * options_.dim]);
      wide_[k] = wide_rows_[ids_[k]];
    }
    input_.batch = kBatch;
    input_.dense = dense_.data();
    input_.embeddings = model_->NeedsEmbeddings() ? embeddings_.data() : nullptr;
    input_.wide = model_->NeedsWide() ? wide_.data() : nullptr;
  }

  const ModelOptions options_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<DenseOptimizer> optimizer_;
  std::vector<float> rows_, wide_rows_;
  std::vector<size_t> ids_;
  std::vector<float> labels_, logits_, dense_, embeddings_, wide_;
  ModelInput input_;
  std::vector<double> losses_;
};

class EveryModelTest : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Kinds, EveryModelTest, ::testing::ValuesIn(ModelKinds()),
                         [](const auto& info) { return info.param; });

TEST_P(EveryModelTest, LearnsAPlantedModel) {
  Trainer trainer(Options(GetParam()));
  EXPECT_LT(trainer.TestAuc(), 0.7);
  trainer.Train(1200);
  const double auc = trainer.TestAuc();
  // A linear model cannot learn the pair of features.
  EXPECT_GT(auc, GetParam() == "lr" ? 0.87 : 0.90);
}

TEST_P(EveryModelTest, LearnsAPlantedModelWithBatchNormalizationAndTheOtherVariants) {
  ModelOptions options = Options(GetParam());
  options.batch_norm = "local";
  options.cross = "vector";
  options.interaction = "cat";
  Trainer trainer(options);
  trainer.Train(1200);
  EXPECT_GT(trainer.TestAuc(), GetParam() == "lr" ? 0.87 : 0.90);
}

TEST_P(EveryModelTest, TrainsToTheSameBitsEveryTime) {
  ModelOptions options = Options(GetParam());
  options.batch_norm = "local";
  options.dropout = 0.3f;
  Trainer a(options), b(options);
  EXPECT_EQ(a.parameters(), b.parameters());
  a.Train(20);
  b.Train(20);
  EXPECT_EQ(a.losses(), b.losses());
  EXPECT_EQ(a.parameters(), b.parameters());
}

TEST_P(EveryModelTest, TheSeedDecidesTheWeightsAndBiasesStartAtZero) {
  ModelOptions options = Options(GetParam());
  const auto first = *CreateModel(options);
  options.seed = 2;
  const auto second = *CreateModel(options);
  for (const ParameterBlock& block : first->blocks()) {
    double sum = 0, squares = 0;
    bool differs = false;
    for (size_t i = block.offset; i < block.offset + block.size; ++i) {
      sum += first->parameters()[i];
      squares += first->parameters()[i] * first->parameters()[i];
      differs |= first->parameters()[i] != second->parameters()[i];
    }
    if (!block.decay || block.name == "wide.weight") {
      EXPECT_EQ(squares, 0.0) << block.name;
      continue;
    }
    EXPECT_TRUE(differs) << block.name;
    ASSERT_EQ(block.shape.size(), 2u);
    // Xavier: variance 2 / (in + out), here within five standard errors.
    const double variance = 2.0 / (block.shape[0] + block.shape[1]);
    const double n = static_cast<double>(block.size);
    EXPECT_NEAR(sum / n, 0.0, 5 * std::sqrt(variance / n)) << block.name;
    EXPECT_NEAR(squares / n, variance, 5 * variance * std::sqrt(2 / n)) << block.name;
  }
}

TEST_P(EveryModelTest, DropoutActsInTrainingOnlyAndByStep) {
  ModelOptions options = Options(GetParam());
  options.dropout = 0.5f;
  const auto model = *CreateModel(options);
  std::vector<float> dense(6, 0.7f), embeddings(2 * 4 * 8, 0.3f), wide(8, 0.1f);
  for (size_t i = 0; i < embeddings.size(); ++i) embeddings[i] *= static_cast<float>(i % 5) - 2.0f;
  ModelInput input{.batch = 2, .dense = dense.data(), .embeddings = embeddings.data(), .wide = wide.data()};
  auto logits = [&](bool training, uint64_t step) {
    std::vector<float> out(2);
    model->Forward(input, training, step, absl::MakeSpan(out));
    return out;
  };
  EXPECT_EQ(logits(false, 1), logits(false, 2));
  EXPECT_EQ(logits(true, 1), logits(true, 1));
  const bool has_hidden = options.kind != "lr" && options.kind != "fm";
  bool varies = false;
  for (uint64_t step = 2; step < 8; ++step) varies |= logits(true, step) != logits(true, 1);
  EXPECT_EQ(varies, has_hidden);
}

TEST_P(EveryModelTest, TakesBatchesOfChangingSize) {
  const ModelOptions options = Options(GetParam());
  const auto model = *CreateModel(options);
  constexpr size_t kMost = 50;
  CounterRandom random(5, 5);
  std::vector<float> dense(kMost * 3), embeddings(kMost * 32), wide(kMost * 4), all(kMost);
  for (auto* values : {&dense, &embeddings, &wide}) {
    for (float& v : *values) v = static_cast<float>(random.Normal());
  }
  ModelInput input{
      .batch = kMost, .dense = dense.data(), .embeddings = embeddings.data(), .wide = wide.data()};
  model->Forward(input, false, 0, absl::MakeSpan(all));
  for (size_t batch : {1, 7, 50, 3}) {
    std::vector<float> logits(batch);
    input.batch = batch;
    model->Forward(input, false, 0, absl::MakeSpan(logits));
    for (size_t b = 0; b < batch; ++b) EXPECT_NEAR(logits[b], all[b], 1e-4 * (1 + std::abs(all[b])));
  }
}

}  // namespace
}  // namespace tandem::worker
