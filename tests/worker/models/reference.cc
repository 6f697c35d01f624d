// SPDX-License-Identifier: Apache-2.0
#include "tests/worker/models/reference.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "worker/nn/activation.h"

namespace tandem::worker {
namespace {

using Vector = std::vector<double>;

class Reference {
 public:
  Reference(const ModelOptions& options, const std::vector<ParameterBlock>& blocks, const Vector& parameters,
            const ReferenceInput& input, bool training, uint64_t step)
      : options_(options), parameters_(parameters), input_(input), training_(training), step_(step) {
    for (const ParameterBlock& block : blocks) blocks_[block.name] = block;
  }

  double Logit(size_t b) {
    example_ = b;
    const Vector dense = Part(input_.dense, options_.num_dense);
    const Vector flat = Part(input_.embeddings, options_.num_sparse * options_.dim);
    Vector tower = flat;
    tower.insert(tower.end(), dense.begin(), dense.end());
    if (options_.kind == "lr") return Wide(dense);
    if (options_.kind == "fm") return Wide(dense) + SecondOrder(flat);
    if (options_.kind == "wide_deep") return Wide(dense) + Tower("deep", tower)[0];
    if (options_.kind == "deepfm") return Wide(dense) + SecondOrder(flat) + Tower("deep", tower)[0];
    if (options_.kind == "dcn") {
      Vector x = tower;
      for (int l = 0; l < options_.cross_layers; ++l) {
        const Vector u = Layer(absl::StrCat("cross.", l), x);
        for (size_t i = 0; i < x.size(); ++i) x[i] = tower[i] * u[i] + x[i];
      }
      if (!options_.hidden.empty()) {
        const Vector deep = Tower("deep", tower);
        x.insert(x.end(), deep.begin(), deep.end());
      }
      return Layer("output", x)[0];
    }
    // dlrm
    std::vector<Vector> vectors;
    Vector top = flat;
    if (!dense.empty()) {
      top = Tower("bottom", dense);
      for (double& v : top) v = std::max(v, 0.0);
      vectors.push_back(top);
    }
    for (int f = 0; f < options_.num_sparse; ++f) {
      vectors.emplace_back(flat.begin() + f * options_.dim, flat.begin() + (f + 1) * options_.dim);
    }
    for (size_t i = 0; i < vectors.size(); ++i) {
      for (size_t j = i + 1; j < vectors.size(); ++j) {
        double dot = 0;
        for (int k = 0; k < options_.dim; ++k) dot += vectors[i][k] * vectors[j][k];
        top.push_back(dot);
      }
    }
    return Tower("top", top)[0];
  }

 private:
  Vector Part(const Vector& all, size_t width) const {
    if (all.empty()) return {};
    return Vector(all.begin() + example_ * width, all.begin() + (example_ + 1) * width);
  }

  double Wide(const Vector& dense) const {
    double sum = 0;
    for (double row : Part(input_.wide, options_.num_sparse)) sum += row;
    if (!dense.empty()) {
      const ParameterBlock& weight = blocks_.at("wide.weight");
      for (size_t i = 0; i < dense.size(); ++i) sum += parameters_[weight.offset + i] * dense[i];
    }
    if (auto bias = blocks_.find("wide.bias"); bias != blocks_.end()) sum += parameters_[bias->second.offset];
    return sum;
  }

  double SecondOrder(const Vector& flat) const {
    const Vector squares = Part(input_.square_sums, options_.dim);
    double total = 0;
    for (int k = 0; k < options_.dim; ++k) {
      double sum = 0, square = 0;
      for (int f = 0; f < options_.num_sparse; ++f) {
        const double v = flat[f * options_.dim + k];
        sum += v;
        square += v * v;
      }
      total += 0.5 * (sum * sum - (squares.empty() ? square : squares[k]));
    }
    return total;
  }

  Vector Layer(const std::string& name, const Vector& x) const {
    const ParameterBlock& weight = blocks_.at(name + ".weight");
    const ParameterBlock& bias = blocks_.at(name + ".bias");
    Vector y(weight.shape[0]);
    for (size_t o = 0; o < y.size(); ++o) {
      y[o] = parameters_[bias.offset + o];
      for (size_t i = 0; i < x.size(); ++i) y[o] += parameters_[weight.offset + o * x.size() + i] * x[i];
    }
    return y;
  }

  // Applies the layers `name`.0, .1, ... that exist. All but an output layer end in ReLU and dropout.
  Vector Tower(const std::string& name, Vector x) const {
    const size_t hidden = (name == "bottom" ? options_.bottom : options_.hidden).size();
    for (size_t l = 0; blocks_.contains(absl::StrCat(name, ".", l, ".weight")); ++l) {
      const std::string layer = absl::StrCat(name, ".", l);
      x = Layer(layer, x);
      if (l >= hidden) continue;
      const Dropout dropout =
          MakeDropout(training_ ? options_.dropout : 0.0f, options_.seed, step_, HashBytes(layer));
      for (size_t i = 0; i < x.size(); ++i) {
        const bool keep = Keeps(dropout, static_cast<uint32_t>(example_ * x.size() + i));
        x[i] = keep ? std::max(x[i], 0.0) * dropout.scale : 0.0;
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
  size_t example_ = 0;
};

}  // namespace

std::vector<double> ReferenceForward(const ModelOptions& options, const std::vector<ParameterBlock>& blocks,
                                     const std::vector<double>& parameters, const ReferenceInput& input,
                                     bool training, uint64_t step) {
  Reference reference(options, blocks, parameters, input, training, step);
  std::vector<double> logits(input.batch);
  for (size_t b = 0; b < input.batch; ++b) logits[b] = reference.Logit(b);
  return logits;
}

}  // namespace tandem::worker
