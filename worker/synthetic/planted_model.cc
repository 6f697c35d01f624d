// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status.h"
#include "worker/synthetic/planted.h"

namespace tandem::worker {
namespace {

// Independent streams of random numbers: of the rows, and of the parts of the true model.
enum Stream : uint64_t { kRow = 1, kWeight = 2, kVector = 3, kDense = 4 };

constexpr uint64_t kMaxVocabulary = 1 << 24;
constexpr int kMaxFields = 1024;

absl::Status Check(const PlantedOptions& o) {
  const auto wrong = [](const char* name, auto value, const char* expected) {
    return absl::InvalidArgumentError(
        absl::StrCat("planted data: ", name, " is ", value, "; it must be ", expected));
  };
  if (o.rows == 0) return wrong("rows", o.rows, "at least 1");
  if (o.num_sparse < 1 || o.num_sparse > kMaxFields) return wrong("num_sparse", o.num_sparse, "in [1, 1024]");
  if (o.num_dense < 0 || o.num_dense > kMaxFields) return wrong("num_dense", o.num_dense, "in [0, 1024]");
  if (o.min_vocabulary < 2) return wrong("min_vocabulary", o.min_vocabulary, "at least 2");
  if (o.max_vocabulary < o.min_vocabulary || o.max_vocabulary > kMaxVocabulary) {
    return wrong("max_vocabulary", o.max_vocabulary, "at least min_vocabulary and at most 16777216");
  }
  if (!(o.zipf_exponent >= 0 && o.zipf_exponent <= 10))
    return wrong("zipf_exponent", o.zipf_exponent, "in [0, 10]");
  for (const PlantedColumn& column : o.more_columns) {
    if (column.vocabulary < 2 || column.vocabulary > kMaxVocabulary) {
      return wrong("the vocabulary of a further column", column.vocabulary, "in [2, 16777216]");
    }
    if (!(column.zipf_exponent >= 0 && column.zipf_exponent <= 10)) {
      return wrong("the zipf_exponent of a further column", column.zipf_exponent, "in [0, 10]");
    }
  }
  if (o.more_columns.size() > static_cast<size_t>(kMaxFields)) {
    return wrong("the number of further columns", o.more_columns.size(), "at most 1024");
  }
  if (o.interacting < 0 || o.interacting > o.num_sparse) {
    return wrong("interacting", o.interacting, "in [0, num_sparse]");
  }
  if (o.dim < 1 || o.dim > 256) return wrong("dim", o.dim, "in [1, 256]");
  for (double stddev : {o.linear_stddev, o.interaction_stddev, o.dense_stddev}) {
    if (!(stddev >= 0 && stddev <= 100)) return wrong("a standard deviation", stddev, "in [0, 100]");
  }
  if (!(o.positive_rate > 0 && o.positive_rate < 1))
    return wrong("positive_rate", o.positive_rate, "in (0, 1)");
  return absl::OkStatus();
}

// Returns P(rank) of Zipf's distribution over `size` ranks.
std::vector<double> ZipfProbabilities(uint64_t size, double exponent) {
  std::vector<double> p(size);
  double sum = 0;
  for (uint64_t i = 0; i < size; ++i) sum += p[i] = std::pow(static_cast<double>(i + 1), -exponent);
  for (double& x : p) x /= sum;
  return p;
}

// Fills values[i * stride] with normal numbers, scaled to mean 0 and standard deviation `stddev` under `p`.
void FillStandardized(const std::vector<double>& p, double stddev, CounterRandom random, size_t stride,
                      float* values) {
  std::vector<double> raw(p.size());
  double mean = 0;
  double squares = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    raw[i] = random.Normal();
    mean += p[i] * raw[i];
  }
  for (size_t i = 0; i < p.size(); ++i) squares += p[i] * (raw[i] - mean) * (raw[i] - mean);
  const double scale = squares > 0 ? stddev / std::sqrt(squares) : 0;
  for (size_t i = 0; i < p.size(); ++i) values[i * stride] = static_cast<float>((raw[i] - mean) * scale);
}

// Returns the bias for which sigmoid(bias + N(0, stddev^2)) has the mean `rate`.
double FindBias(double rate, double stddev) {
  double low = -50;
  double high = 50;
  for (int step = 0; step < 60; ++step) {
    const double bias = (low + high) / 2;
    double sum = 0;
    double mass = 0;
    for (int i = -400; i <= 400; ++i) {
      const double z = i / 50.0;
      const double density = std::exp(-z * z / 2);
      sum += density * Sigmoid(bias + stddev * z);
      mass += density;
    }
    (sum / mass < rate ? low : high) = bias;
  }
  return low;
}

}  // namespace

absl::StatusOr<PlantedModel> PlantedModel::Create(const PlantedOptions& options) {
  TANDEM_RETURN_IF_ERROR(Check(options));
  PlantedModel model;
  model.options_ = options;
  const double growth =
      static_cast<double>(options.max_vocabulary) / static_cast<double>(options.min_vocabulary);
  for (int f = 0; f < options.num_sparse; ++f) {
    const double place = options.num_sparse == 1 ? 1.0 : static_cast<double>(f) / (options.num_sparse - 1);
    model.vocabulary_.push_back(
        std::llround(static_cast<double>(options.min_vocabulary) * std::pow(growth, place)));
  }
  for (const PlantedColumn& column : options.more_columns) model.vocabulary_.push_back(column.vocabulary);
  for (int f = 0; f < static_cast<int>(model.vocabulary_.size()); ++f) {
    const int further = f - options.num_sparse;
    model.fields_.push_back(model.MakeField(
        f, further < 0 ? options.zipf_exponent : options.more_columns[further].zipf_exponent));
  }
  CounterRandom random(options.seed, Mix64(kDense));
  double squares = 0;
  for (int d = 0; d < options.num_dense; ++d) {
    model.linear_.push_back(random.Normal());
    model.quadratic_.push_back(0.3 * random.Normal());
    // x^2 - 1 of a standard normal x has variance 2 and does not correlate with x.
    squares += model.linear_[d] * model.linear_[d] + 2 * model.quadratic_[d] * model.quadratic_[d];
  }
  for (int d = 0; d < options.num_dense; ++d) {
    model.linear_[d] *= options.dense_stddev / std::sqrt(squares);
    model.quadratic_[d] *= options.dense_stddev / std::sqrt(squares);
  }
  model.bias_ =
      FindBias(options.positive_rate,
               std::hypot(options.linear_stddev, options.interacting > 1 ? options.interaction_stddev : 0.0,
                          options.num_dense > 0 ? options.dense_stddev : 0.0));
  return model;
}

PlantedModel::Field PlantedModel::MakeField(int index, double zipf_exponent) const {
  const uint64_t size = vocabulary_[index];
  const std::vector<double> p = ZipfProbabilities(size, zipf_exponent);
  Field field;
  // Fields with few ids carry more of the signal: each of their ids occurs often, so a model can learn it.
  const auto share = [](uint64_t vocabulary) { return std::pow(static_cast<double>(vocabulary), -0.6); };
  double shares = 0;
  for (uint64_t vocabulary : vocabulary_) shares += share(vocabulary);
  field.weight.resize(size);
  FillStandardized(p, options_.linear_stddev * std::sqrt(share(size) / shares),
                   CounterRandom(options_.seed, Mix64(kWeight, index)), 1, field.weight.data());
  if (index < options_.interacting && options_.interacting > 1) {
    // Each pair's inner product is a sum of `dim` products of independent factors with standard deviation s.
    const double pairs = options_.interacting * (options_.interacting - 1) / 2.0;
    const double s = std::sqrt(options_.interaction_stddev / std::sqrt(pairs * options_.dim));
    field.vectors.resize(size * options_.dim);
    for (int k = 0; k < options_.dim; ++k) {
      FillStandardized(p, s, CounterRandom(options_.seed, Mix64(Mix64(kVector, index), k)), options_.dim,
                       field.vectors.data() + k);
    }
  }
  field.keep.resize(size);
  field.other.resize(size);
  std::vector<double> scaled(size);
  std::vector<uint32_t> small;
  std::vector<uint32_t> large;
  for (uint32_t i = 0; i < size; ++i) {
    scaled[i] = p[i] * static_cast<double>(size);
    (scaled[i] < 1 ? small : large).push_back(i);
  }
  while (!small.empty() && !large.empty()) {
    const uint32_t poor = small.back();
    const uint32_t rich = large.back();
    small.pop_back();
    field.keep[poor] = static_cast<float>(scaled[poor]);
    field.other[poor] = rich;
    scaled[rich] -= 1 - scaled[poor];
    if (scaled[rich] < 1) {
      large.pop_back();
      small.push_back(rich);
    }
  }
  for (uint32_t i : small) field.keep[i] = 1;
  for (uint32_t i : large) field.keep[i] = 1;
  return field;
}

double PlantedModel::Logit(absl::Span<const uint32_t> ids, absl::Span<const float> dense) const {
  double logit = bias_;
  for (size_t f = 0; f < fields_.size(); ++f) logit += fields_[f].weight[ids[f]];
  if (options_.interacting > 1) {
    for (int k = 0; k < options_.dim; ++k) {
      // The sum over all pairs, as factorization machines compute it.
      double sum = 0;
      double squares = 0;
      for (int f = 0; f < options_.interacting; ++f) {
        const double v = fields_[f].vectors[size_t{ids[f]} * options_.dim + k];
        sum += v;
        squares += v * v;
      }
      logit += (sum * sum - squares) / 2;
    }
  }
  for (size_t d = 0; d < dense.size(); ++d) {
    const double x = dense[d];
    logit += linear_[d] * x + quadratic_[d] * (x * x - 1);
  }
  return logit;
}

void PlantedModel::Generate(uint64_t index, Row* row) const {
  CounterRandom random(options_.seed, Mix64(kRow, index));
  row->ids.resize(fields_.size());
  row->dense.resize(options_.num_dense);
  for (size_t f = 0; f < fields_.size(); ++f) {
    const uint64_t drawn = random();
    const uint32_t slot =
        static_cast<uint32_t>((static_cast<unsigned __int128>(drawn) * fields_[f].keep.size()) >> 64);
    row->ids[f] = random.Uniform() < fields_[f].keep[slot] ? slot : fields_[f].other[slot];
  }
  for (float& x : row->dense) x = static_cast<float>(std::nearbyint(random.Normal() * 1000) / 1000);
  row->logit = Logit(row->ids, row->dense);
  row->label = random.UniformDouble() < Sigmoid(row->logit);
}

}  // namespace tandem::worker
