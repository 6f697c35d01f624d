// SPDX-License-Identifier: Apache-2.0
#include "worker/step/lookup.h"

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace tandem::worker {
namespace {

constexpr int kDim = 3;

// Row values by (table, id), as a parameter server would store them.
float RowValue(const std::string& table, uint64_t id, int d) {
  return static_cast<float>(Mix64(HashBytes(table, id), d) % 1000) / 500.0f - 1.0f;
}

// Handles Lookup's pulls and pushes as the servers do, pooling included.
void Respond(const std::vector<LookupTable>& tables, std::vector<ps::PullPart> parts) {
  ASSERT_EQ(parts.size(), tables.size());
  for (size_t t = 0; t < parts.size(); ++t) {
    const int dim = tables[t].dim;
    const ps::PullPart& part = parts[t];
    if (part.pooling == ps::v1::NONE) {
      for (size_t i = 0; i < part.ids.size(); ++i) {
        for (int d = 0; d < dim; ++d) part.rows[i * dim + d] = RowValue(part.table, part.ids[i], d);
      }
      continue;
    }
    for (size_t bag = 0; bag + 1 < part.offsets.size(); ++bag) {
      const float n = static_cast<float>(part.offsets[bag + 1] - part.offsets[bag]);
      for (int d = 0; d < dim; ++d) {
        float sum = 0;
        for (uint32_t i = part.offsets[bag]; i < part.offsets[bag + 1]; ++i) {
          sum += RowValue(part.table, part.ids[i], d);
        }
        part.rows[bag * dim + d] = part.pooling == ps::v1::MEAN && n > 0 ? sum / n : sum;
      }
    }
  }
}

// Three features: single-valued, multi-valued with empty bags, and one that shares its ids with the first.
Batch RandomBatch(uint64_t seed, size_t size, bool weights) {
  CounterRandom random(seed, 0);
  Batch batch;
  batch.size = size;
  batch.labels.assign(size, 0.0f);
  batch.sparse.resize(3);
  for (const int f : {0, 2}) {
    for (size_t b = 0; b < size; ++b) batch.sparse[f].ids.push_back(100 + random.Below(7));
  }
  SparseColumn& multi = batch.sparse[1];
  multi.offsets.push_back(0);
  for (size_t b = 0; b < size; ++b) {
    for (uint64_t n = random.Below(4); n > 0; --n) {
      multi.ids.push_back(200 + random.Below(5));
      if (weights) multi.weights.push_back(random.Uniform());
    }
    multi.offsets.push_back(static_cast<uint32_t>(multi.ids.size()));
  }
  return batch;
}

LookupPlan MakePlan() {
  LookupPlan plan;
  plan.num_features = 3;
  plan.dim = kDim;
  plan.tables = {{.name = "item", .dim = kDim, .features = {1}},
                 {.name = "embedding", .dim = kDim, .features = {0, 2}},
                 {.name = "wide", .dim = 1, .wide = true, .features = {0, 1, 2}}};
  plan.shared_features = {{0, 2}};
  return plan;
}

struct Case {
  bool mean, square_sums, server_pooling, weights;
};

class LookupTest : public ::testing::TestWithParam<Case> {};

// The expected results: every id by itself, without sharing or deduplication.
TEST_P(LookupTest, GathersAndScattersWhatARowByRowLoopWould) {
  const Case& c = GetParam();
  LookupPlan plan = MakePlan();
  plan.mean = c.mean;
  plan.square_sums = c.square_sums;
  plan.server_pooling = c.server_pooling;
  Lookup lookup(&plan);
  for (const size_t size : {5, 1, 33, 0, 8}) {  // one object handles batches of any size
    const Batch batch = RandomBatch(size, size, c.weights);
    TANDEM_ASSERT_OK(lookup.Prepare(&batch));
    Respond(plan.tables, lookup.PullParts());
    ModelInput input;
    lookup.Gather(&input);
    const InputGradients d = lookup.GradientBuffers();
    CounterRandom random(77, size);
    for (size_t i = 0; i < size * 3 * kDim; ++i) d.embeddings[i] = random.Uniform() - 0.5f;
    for (size_t i = 0; i < size * 3; ++i) d.wide[i] = random.Uniform() - 0.5f;
    for (size_t i = 0; c.square_sums && i < size * kDim; ++i) d.square_sums[i] = random.Uniform() - 0.5f;

    std::map<std::pair<std::string, uint64_t>, std::vector<double>> expected;  // gradients
    for (size_t b = 0; b < size; ++b) {
      std::vector<double> squares(kDim, 0.0);
      for (int f = 0; f < 3; ++f) {
        const std::string table = f == 1 ? "item" : "embedding";
        const SparseColumn& column = batch.sparse[f];
        const size_t begin = column.offsets.empty() ? b : column.offsets[b];
        const size_t end = column.offsets.empty() ? b + 1 : column.offsets[b + 1];
        std::vector<double> sum(kDim, 0.0);
        double wide = 0;
        for (size_t i = begin; i < end; ++i) {
          double weight = column.weights.empty() ? 1.0 : column.weights[i];
          if (c.mean) weight /= static_cast<double>(end - begin);
          std::vector<double>& g = expected[{table, column.ids[i]}];
          g.resize(kDim);
          for (int k = 0; k < kDim; ++k) {
            const double value = RowValue(table, column.ids[i], k);
            sum[k] += weight * value;
            squares[k] += weight * value * weight * value;
            g[k] += weight * d.embeddings[(b * 3 + f) * kDim + k];
            if (c.square_sums) g[k] += 2 * weight * weight * value * d.square_sums[b * kDim + k];
          }
          wide += weight * RowValue("wide", column.ids[i], 0);
          std::vector<double>& gw = expected[{"wide", column.ids[i]}];
          gw.resize(1);
          gw[0] += weight * d.wide[b * 3 + f];
        }
        for (int k = 0; k < kDim; ++k) EXPECT_NEAR(input.embeddings[(b * 3 + f) * kDim + k], sum[k], 1e-5);
        EXPECT_NEAR(input.wide[b * 3 + f], wide, 1e-5);
      }
      for (int k = 0; c.square_sums && k < kDim; ++k)
        EXPECT_NEAR(input.square_sums[b * kDim + k], squares[k], 1e-5);
    }

    std::map<std::pair<std::string, uint64_t>, std::vector<double>> actual;
    for (const ps::PushPart& part : lookup.Scatter()) {
      const int dim = part.table == "wide" ? 1 : kDim;
      for (size_t bag = 0; part.pooling != ps::v1::NONE && bag + 1 < part.offsets.size(); ++bag) {
        const double n = part.offsets[bag + 1] - part.offsets[bag];
        for (uint32_t i = part.offsets[bag]; i < part.offsets[bag + 1]; ++i) {
          std::vector<double>& g = actual[{part.table, part.ids[i]}];
          g.resize(dim);
          for (int k = 0; k < dim; ++k) {
            g[k] += part.gradients[bag * dim + k] / (part.pooling == ps::v1::MEAN ? n : 1.0);
          }
        }
      }
      for (size_t i = 0; part.pooling == ps::v1::NONE && i < part.ids.size(); ++i) {
        std::vector<double>& g = actual[{part.table, part.ids[i]}];
        EXPECT_TRUE(g.empty()) << "id " << part.ids[i] << " stands twice in the push to " << part.table;
        g.resize(dim);
        for (int k = 0; k < dim; ++k) g[k] += part.gradients[i * dim + k];
      }
    }
    ASSERT_EQ(actual.size(), expected.size());
    for (const auto& [key, gradient] : expected) {
      ASSERT_EQ(actual[key].size(), gradient.size()) << key.first << " " << key.second;
      for (size_t k = 0; k < gradient.size(); ++k)
        EXPECT_NEAR(actual[key][k], gradient[k], 1e-5) << key.first;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, LookupTest,
                         ::testing::Values(Case{false, false, false, false}, Case{true, false, false, false},
                                           Case{false, true, false, false}, Case{false, true, false, true},
                                           Case{true, true, false, true}, Case{false, false, true, false},
                                           Case{true, false, true, false}));

TEST(LookupTest, RefusesABatchWithAnotherNumberOfFeatures) {
  const LookupPlan plan = MakePlan();
  Lookup lookup(&plan);
  Batch batch;
  batch.sparse.resize(2);
  EXPECT_THAT(lookup.Prepare(&batch),
              testing::StatusIs(absl::StatusCode::kInvalidArgument,
                                ::testing::HasSubstr("2 sparse features, the job 3")));
}

}  // namespace
}  // namespace tandem::worker
