// SPDX-License-Identifier: Apache-2.0
#include "tests/worker/models/reference.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "worker/nn/activation.h"

namespace tandem::worker {
namespace {

using Vector = std::vector<double>;

// Values of all examples of a batch.
using Batch = std::vector<Vector>;

class Reference {
 public:
  Reference(const ModelOptions& options, const std::vector<ParameterBlock>& blocks, const Vector& parameters,
            const ReferenceInput& input, bool training, uint64_t step)
      : options_(options), parameters_(parameters), input_(input), training_(training), step_(step) {
    for (const ParameterBlock& block : blocks) blocks_[block.name] = block;
  }

  Vector Logits() const {
    const Batch dense = Part(input_.dense, options_.num_dense);
    const Batch flat = Part(input_.embeddings, options_.num_sparse * options_.dim);
    const Batch tower = Join(flat, dense);
    const std::string& kind = options_.kind;
    if (kind == "lr") return Wide(dense);
    if (kind == "fm") return Sum(Wide(dense), SecondOrder(flat));
    if (kind == "dnn") return Column(Tower("deep", tower));
    if (kind == "wide_deep") return Sum(Wide(dense), Column(Tower("deep", tower)));
    if (kind == "deepfm") {
      return Sum(Sum(Wide(dense), SecondOrder(flat)), Column(Tower("deep", tower)));
    }
    if (kind == "dcn") {
      Batch x = Cross(tower);
      if (!options_.hidden.empty()) x = Join(x, Tower("deep", tower));
      return Column(Layer("output", x));
    }
    // dlrm
    Batch top = flat;
    if (options_.num_dense > 0) {
      top = Tower("bottom", dense);
      for (Vector& example : top) {
        for (double& v : example) v = std::max(v, 0.0);
      }
    }
    if (options_.interaction == "cat") {
      return Column(Tower("top", options_.num_dense > 0 ? Join(top, flat) : flat));
    }
    const Batch first = options_.num_dense > 0 ? top : Batch(input_.batch);
    for (size_t b = 0; b < input_.batch; ++b) {
      std::vector<Vector> vectors;
      if (!first[b].empty()) vectors.push_back(first[b]);
      for (int f = 0; f < options_.num_sparse; ++f) {
        vectors.emplace_back(flat[b].begin() + f * options_.dim, flat[b].begin() + (f + 1) * options_.dim);
      }
      for (size_t i = 0; i < vectors.size(); ++i) {
        for (size_t j = i + 1; j < vectors.size(); ++j) {
          double dot = 0;
          for (int k = 0; k < options_.dim; ++k) dot += vectors[i][k] * vectors[j][k];
          top[b].push_back(dot);
        }
      }
    }
    return Column(Tower("top", top));
  }

 private:
  Batch Part(const Vector& all, size_t width) const {
    Batch part(input_.batch);
    for (size_t b = 0; b < input_.batch && !all.empty(); ++b) {
      part[b].assign(all.begin() + b * width, all.begin() + (b + 1) * width);
    }
    return part;
  }
  static Batch Join(Batch a, const Batch& b) {
    for (size_t i = 0; i < a.size(); ++i) a[i].insert(a[i].end(), b[i].begin(), b[i].end());
    return a;
  }
  static Vector Sum(Vector a, const Vector& b) {
    for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
    return a;
  }
  static Vector Column(const Batch& batch) {
    Vector column;
    for (const Vector& example : batch) column.push_back(example[0]);
    return column;
  }

  Vector Wide(const Batch& dense) const {
    const Batch rows = Part(input_.wide, options_.num_sparse);
    Vector sums(input_.batch);
    for (size_t b = 0; b < input_.batch; ++b) {
      for (double row : rows[b]) sums[b] += row;
      for (size_t i = 0; i < dense[b].size(); ++i) {
        sums[b] += parameters_[blocks_.at("wide.weight").offset + i] * dense[b][i];
      }
      if (auto bias = blocks_.find("wide.bias"); bias != blocks_.end())
        sums[b] += parameters_[bias->second.offset];
    }
    return sums;
  }

  Vector SecondOrder(const Batch& flat) const {
    const Batch squares = Part(input_.square_sums, options_.dim);
    Vector totals(input_.batch);
    for (size_t b = 0; b < input_.batch; ++b) {
      for (int k = 0; k < options_.dim; ++k) {
        double sum = 0, square = 0;
        for (int f = 0; f < options_.num_sparse; ++f) {
          const double v = flat[b][f * options_.dim + k];
          sum += v;
          square += v * v;
        }
        totals[b] += 0.5 * (sum * sum - (squares[b].empty() ? square : squares[b][k]));
      }
    }
    return totals;
  }

  Batch Cross(const Batch& x0) const {
    Batch x = x0;
    for (int l = 0; l < options_.cross_layers; ++l) {
      const std::string layer = absl::StrCat("cross.", l);
      for (size_t b = 0; b < x.size(); ++b) {
        if (options_.cross == "vector") {
          const size_t weight = blocks_.at(layer + ".weight").offset,
                       bias = blocks_.at(layer + ".bias").offset;
          double dot = 0;
          for (size_t i = 0; i < x[b].size(); ++i) dot += parameters_[weight + i] * x[b][i];
          for (size_t i = 0; i < x[b].size(); ++i) x[b][i] += x0[b][i] * dot + parameters_[bias + i];
        } else {
          const Vector u = Layer(layer, {x[b]})[0];
          for (size_t i = 0; i < x[b].size(); ++i) x[b][i] += x0[b][i] * u[i];
        }
      }
    }
    return x;
  }

  // W x + b; or, if the layer has a scale, batch normalization of W x, times the scale, + b. Outside of
  // training the running averages are those of a new model: mean 0, variance 1.
  Batch Layer(const std::string& name, const Batch& x) const {
    const ParameterBlock& weight = blocks_.at(name + ".weight");
    const ParameterBlock& bias = blocks_.at(name + ".bias");
    const auto scale = blocks_.find(name + ".scale");
    Batch y(x.size(), Vector(weight.shape[0]));
    for (int o = 0; o < weight.shape[0]; ++o) {
      double sum = 0, squares = 0;
      for (size_t b = 0; b < x.size(); ++b) {
        for (size_t i = 0; i < x[b].size(); ++i)
          y[b][o] += parameters_[weight.offset + o * x[b].size() + i] * x[b][i];
        sum += y[b][o];
      }
      const double mean = training_ ? sum / static_cast<double>(x.size()) : 0.0;
      for (size_t b = 0; b < x.size(); ++b) squares += (y[b][o] - mean) * (y[b][o] - mean);
      const double variance = training_ ? squares / static_cast<double>(x.size()) : 1.0;
      for (size_t b = 0; b < x.size(); ++b) {
        if (scale != blocks_.end()) {
          y[b][o] = (y[b][o] - mean) / std::sqrt(variance + double{options_.batch_norm_epsilon}) *
                    parameters_[scale->second.offset + o];
        }
        y[b][o] += parameters_[bias.offset + o];
      }
    }
    return y;
  }

  // Applies the layers `name`.0, .1, ... that exist. All but an output layer end in ReLU and dropout.
  Batch Tower(const std::string& name, Batch x) const {
    const size_t hidden = (name == "bottom" ? options_.bottom : options_.hidden).size();
    for (size_t l = 0; blocks_.contains(absl::StrCat(name, ".", l, ".weight")); ++l) {
      const std::string layer = absl::StrCat(name, ".", l);
      x = Layer(layer, x);
      if (l >= hidden) continue;
      const Dropout dropout =
          MakeDropout(training_ ? options_.dropout : 0.0f, options_.seed, step_, HashBytes(layer));
      for (size_t b = 0; b < x.size(); ++b) {
        for (size_t i = 0; i < x[b].size(); ++i) {
          const bool keep = Keeps(dropout, static_cast<uint32_t>(b * x[b].size() + i));
          x[b][i] = keep ? std::max(x[b][i], 0.0) * dropout.scale : 0.0;
        }
      }
    }
    return x;
  }

  const ModelOptions& options_;
  const Vector& parameters_;
  const ReferenceInput& input_;
  const bool training_;
  const uint64_t step_;
  std::map<std::string, ParameterBlock> blocks_;
};

}  // namespace

std::vector<double> ReferenceForward(const ModelOptions& options, const std::vector<ParameterBlock>& blocks,
                                     const std::vector<double>& parameters, const ReferenceInput& input,
                                     bool training, uint64_t step) {
  return Reference(options, blocks, parameters, input, training, step).Logits();
}

}  // namespace tandem::worker
