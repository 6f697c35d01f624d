// SPDX-License-Identifier: Apache-2.0
// Compares every model's logits with a naive double-precision reference, and its gradients with central
// differences of that reference, which are exact to about 1e-9 in double precision.

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/models/normals.h"
#include "tests/worker/models/reference.h"
#include "worker/models/model.h"

namespace tandem::worker {
namespace {

struct Case {
  std::string kind;
  int num_dense;
  int num_sparse;
  int dim;
  std::vector<int> hidden = {7, 5};
  std::vector<int> bottom = {6};
  size_t batch = 5;
  float dropout = 0.0f;
  bool square_sums = false;
  int cross_layers = 3;
  std::string cross = "matrix";
  std::string interaction = "dot";
  std::string batch_norm = "none";
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.kind << " dense " << c.num_dense << " sparse " << c.num_sparse << " dim " << c.dim
             << " hidden " << c.hidden.size() << " batch " << c.batch << " dropout " << c.dropout
             << " squares " << c.square_sums << " cross " << c.cross << " interaction " << c.interaction
             << " batch_norm " << c.batch_norm;
}

std::vector<double> Doubles(absl::Span<const float> values) { return {values.begin(), values.end()}; }

class ModelGradientTest : public ::testing::TestWithParam<Case> {};

TEST_P(ModelGradientTest, MatchesTheReferenceAndItsFiniteDifferences) {
  const Case& c = GetParam();
  constexpr uint64_t kStep = 11;
  ModelOptions options;
  options.kind = c.kind;
  options.num_dense = c.num_dense;
  options.num_sparse = c.num_sparse;
  options.dim = c.dim;
  options.hidden = c.hidden;
  options.bottom = c.bottom;
  options.dropout = c.dropout;
  options.cross_layers = c.cross_layers;
  options.cross = c.cross;
  options.interaction = c.interaction;
  options.batch_norm = c.batch_norm;
  options.seed = 5;
  auto created = CreateModel(options);
  ASSERT_TRUE(created.ok()) << created.status();
  Model& model = **created;
  // Biases and wide weights start at zero, which would hide some errors.
  {
    const std::vector<float> noise = Normals(model.parameters().size(), 99, 0.7, 7);
    for (size_t i = 0; i < noise.size(); ++i) model.parameters()[i] += 0.2f * noise[i];
  }

  const size_t batch = c.batch;
  const std::vector<float> dense = Normals(batch * c.num_dense, 1, 0.7, 7);
  const std::vector<float> embeddings = Normals(batch * c.num_sparse * c.dim, 2, 0.7, 7);
  const std::vector<float> squares = Normals(batch * c.dim, 3, 0.7, 7);
  const std::vector<float> wide = Normals(batch * c.num_sparse, 4, 0.7, 7);
  const std::vector<float> d_logits = Normals(batch, 5, 0.7, 7);
  ModelInput input;
  input.batch = batch;
  input.dense = dense.data();
  ReferenceInput reference;
  reference.batch = batch;
  reference.dense = Doubles(dense);
  if (model.NeedsEmbeddings()) {
    input.embeddings = embeddings.data();
    reference.embeddings = Doubles(embeddings);
  }
  if (model.NeedsWide()) {
    input.wide = wide.data();
    reference.wide = Doubles(wide);
  }
  if (c.square_sums) {
    ASSERT_TRUE(model.NeedsSquareSums());
    input.square_sums = squares.data();
    reference.square_sums = Doubles(squares);
  }
  std::vector<double> parameters = Doubles(model.parameters());

  // Evaluates a larger batch first, so that reused buffers contain other values.
  {
    std::vector<float> logits(batch);
    model.Forward(input, /*training=*/false, 0, absl::MakeSpan(logits));
    const auto expected = ReferenceForward(options, model.blocks(), parameters, reference, false, 0);
    for (size_t b = 0; b < batch; ++b)
      EXPECT_NEAR(logits[b], expected[b], 1e-4 * (1 + std::abs(expected[b])));
  }
  std::vector<float> logits(batch);
  model.Forward(input, /*training=*/true, kStep, absl::MakeSpan(logits));
  const auto expected = ReferenceForward(options, model.blocks(), parameters, reference, true, kStep);
  for (size_t b = 0; b < batch; ++b) EXPECT_NEAR(logits[b], expected[b], 1e-4 * (1 + std::abs(expected[b])));

  // Gradients must be overwritten, so their old values must not matter.
  std::fill(model.gradients().begin(), model.gradients().end(), 1e6f);
  std::vector<float> d_embeddings(embeddings.size(), 1e6f), d_squares(squares.size(), 1e6f),
      d_wide(wide.size(), 1e6f);
  InputGradients d_input;
  if (model.NeedsEmbeddings()) d_input.embeddings = d_embeddings.data();
  if (c.square_sums) d_input.square_sums = d_squares.data();
  if (model.NeedsWide()) d_input.wide = d_wide.data();
  std::vector<int> times_ready(parameters.size());
  std::vector<float> at_ready(parameters.size());
  model.BackwardInputs(input, d_logits, d_input);
  const std::vector<std::vector<float>> sent = {d_embeddings, d_squares, d_wide};
  model.BackwardParameters(input, d_logits, [&](size_t begin, size_t end) {
    ASSERT_LT(begin, end);
    ASSERT_LE(end, parameters.size());
    for (size_t i = begin; i < end; ++i) {
      ++times_ready[i];
      at_ready[i] = model.gradients()[i];
    }
  });
  EXPECT_THAT(times_ready, ::testing::Each(1));
  EXPECT_EQ(at_ready, std::vector<float>(model.gradients().begin(), model.gradients().end()))
      << "a range changed after it was called ready";
  EXPECT_EQ(sent, std::vector({d_embeddings, d_squares, d_wide}))
      << "they may be on their way to the servers while the parameters' gradients are computed";

  auto objective = [&] {
    const auto z = ReferenceForward(options, model.blocks(), parameters, reference, true, kStep);
    double sum = 0;
    for (size_t b = 0; b < batch; ++b) sum += z[b] * d_logits[b];
    return sum;
  };
  // Checks at most about 150 evenly spread values of each array.
  auto check = [&](const std::string& name, std::vector<double>& values, size_t begin, size_t end,
                   const float* gradients) {
    const size_t stride = (end - begin) / 150 + 1;
    for (size_t i = begin; i < end; i += stride) {
      const double kept = values[i];
      constexpr double kDelta = 1e-6;
      values[i] = kept + kDelta;
      const double up = objective();
      values[i] = kept - kDelta;
      const double down = objective();
      values[i] = kept;
      const double numeric = (up - down) / (2 * kDelta);
      ASSERT_NEAR(gradients[i], numeric, 2e-4 * (1 + std::abs(numeric))) << name << "[" << i - begin << "]";
    }
  };
  for (const ParameterBlock& block : model.blocks()) {
    check(block.name, parameters, block.offset, block.offset + block.size, model.gradients().data());
  }
  if (model.NeedsEmbeddings()) {
    check("embeddings", reference.embeddings, 0, reference.embeddings.size(), d_embeddings.data());
  }
  if (c.square_sums)
    check("square_sums", reference.square_sums, 0, reference.square_sums.size(), d_squares.data());
  if (model.NeedsWide()) check("wide", reference.wide, 0, reference.wide.size(), d_wide.data());
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const std::string& kind : ModelKinds()) {
    for (int dim : {1, 3, 8, 16, 20})
      cases.push_back({.kind = kind, .num_dense = 5, .num_sparse = 4, .dim = dim});
    cases.push_back({.kind = kind, .num_dense = 0, .num_sparse = 5, .dim = 6});
    cases.push_back({.kind = kind, .num_dense = 13, .num_sparse = 1, .dim = 4, .batch = 1});
    cases.push_back({.kind = kind, .num_dense = 0, .num_sparse = 1, .dim = 5});
    cases.push_back({.kind = kind, .num_dense = 3, .num_sparse = 26, .dim = 16, .hidden = {33}, .batch = 3});
    cases.push_back({.kind = kind,
                     .num_dense = 4,
                     .num_sparse = 3,
                     .dim = 8,
                     .hidden = {40, 17},
                     .bottom = {18},
                     .batch = 9,
                     .dropout = 0.4f});
    cases.push_back({.kind = kind, .num_dense = 4, .num_sparse = 3, .dim = 8, .hidden = {}, .bottom = {}});
  }
  for (const char* kind : {"dnn", "wide_deep", "deepfm", "dcn", "dlrm"}) {
    for (int dim : {1, 3, 16}) {
      cases.push_back({.kind = kind, .num_dense = 5, .num_sparse = 4, .dim = dim, .batch_norm = "local"});
    }
    cases.push_back({.kind = kind, .num_dense = 0, .num_sparse = 5, .dim = 6, .batch_norm = "sync"});
    cases.push_back(
        {.kind = kind, .num_dense = 4, .num_sparse = 3, .dim = 5, .batch = 1, .batch_norm = "local"});
    cases.push_back({.kind = kind,
                     .num_dense = 4,
                     .num_sparse = 3,
                     .dim = 8,
                     .hidden = {40, 17},
                     .bottom = {18},
                     .batch = 9,
                     .dropout = 0.4f,
                     .batch_norm = "local"});
  }
  for (int dim : {1, 3, 8, 16, 20}) {
    cases.push_back({.kind = "dcn", .num_dense = 5, .num_sparse = 4, .dim = dim, .cross = "vector"});
    cases.push_back({.kind = "dlrm", .num_dense = 5, .num_sparse = 4, .dim = dim, .interaction = "cat"});
  }
  for (int layers : {1, 2}) {
    cases.push_back({.kind = "dcn",
                     .num_dense = 0,
                     .num_sparse = 3,
                     .dim = 7,
                     .hidden = {},
                     .cross_layers = layers,
                     .cross = "vector"});
  }
  cases.push_back({.kind = "dcn", .num_dense = 7, .num_sparse = 0, .dim = 8, .batch = 33, .cross = "vector"});
  cases.push_back({.kind = "dlrm", .num_dense = 0, .num_sparse = 3, .dim = 8, .interaction = "cat"});
  cases.push_back({.kind = "dlrm",
                   .num_dense = 3,
                   .num_sparse = 2,
                   .dim = 4,
                   .hidden = {},
                   .bottom = {},
                   .interaction = "cat"});
  cases.push_back({.kind = "dlrm",
                   .num_dense = 3,
                   .num_sparse = 2,
                   .dim = 4,
                   .interaction = "cat",
                   .batch_norm = "local"});
  for (const char* kind : {"lr", "dnn", "wide_deep", "dcn"}) {
    cases.push_back({.kind = kind, .num_dense = 7, .num_sparse = 0, .dim = 8});
  }
  for (const char* kind : {"fm", "deepfm"}) {
    for (int dim : {1, 3, 8, 16, 20}) {
      cases.push_back({.kind = kind, .num_dense = 2, .num_sparse = 3, .dim = dim, .square_sums = true});
    }
  }
  cases.push_back({.kind = "dcn", .num_dense = 2, .num_sparse = 3, .dim = 4, .cross_layers = 1});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Kinds, ModelGradientTest, ::testing::ValuesIn(Cases()));

}  // namespace
}  // namespace tandem::worker
