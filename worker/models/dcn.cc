// SPDX-License-Identifier: Apache-2.0
// DCN with the parallel structure: cross layers and an MLP both read x_0 = [embeddings | dense], and a linear
// output reads [cross | deep]. The weight of a cross layer is a matrix (DCN-v2, Wang et al., WWW 2021) or a
// vector (DCN, Wang et al., ADKDD 2017). Without hidden layers it is the cross network alone.

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>

#include "worker/models/cross.h"
#include "worker/models/dense_model.h"
#include "worker/models/registry.h"
#include "worker/nn/activation.h"
#include "worker/nn/linear.h"

namespace tandem::worker {
namespace {

constexpr int kMaxCrossLayers = 64;

class Dcn final : public DenseModel {
 public:
  explicit Dcn(const ModelOptions& options)
      : DenseModel(options),
        width_(embedding_width() + num_dense()),
        cross_(options.cross == "vector"
                   ? MakeVectorCross("cross", static_cast<int>(width_), options.cross_layers, &parameters_)
                   : MakeMatrixCross("cross", static_cast<int>(width_), options.cross_layers, &parameters_)) {
    if (!options.hidden.empty()) deep_.emplace(TowerOptions("deep", width_, options.hidden), &parameters_);
    joint_width_ = width_ + (deep_ ? deep_->out() : 0);
    output_.emplace("output", static_cast<int>(joint_width_), 1, &parameters_);
  }

  void Forward(const ModelInput& input, bool training, uint64_t step, absl::Span<float> logits) override {
    const size_t batch = input.batch;
    const ConstMatrix x0 = Concatenate(input);
    // [cross | deep]: each part writes its own columns.
    const Matrix joint{Grow(joint_, batch * joint_width_), joint_width_, joint_width_};
    cross_->Forward(x0, batch, {joint.data, joint.ld, width_});
    if (deep_) {
      deep_->Forward(absl::MakeConstSpan(&x0, 1), batch, training, step,
                     {joint.data + width_, joint.ld, deep_->out()});
    }
    const ConstMatrix features = joint;
    const Matrix out{logits.data(), 1, 1};
    output_->Multiply(absl::MakeConstSpan(&features, 1), batch, out);
    AddBias(output_->bias(), batch, out);
  }

  void BackwardInputs(const ModelInput& input, absl::Span<const float> d_logits,
                      const InputGradients& d_input) override {
    const size_t batch = input.batch;
    const ConstMatrix x0{x0_.data(), width_, width_};
    const ConstMatrix d_out{d_logits.data(), 1, 1};
    ColumnSums(d_out, batch, output_->bias_gradient());
    const Matrix d_joint{Grow(d_joint_, batch * joint_width_), joint_width_, joint_width_};
    output_->InputGradient(d_out, batch, 0.0f, absl::MakeConstSpan(&d_joint, 1));

    const Matrix dx0{Grow(d_x0_, batch * width_), width_, width_};
    if (deep_) {
      deep_->BackwardInputs(batch, {d_joint.data + width_, d_joint.ld, deep_->out()}, 0.0f,
                            absl::MakeConstSpan(&dx0, 1));
    } else {
      std::fill(dx0.data, dx0.data + batch * width_, 0.0f);
    }
    cross_->BackwardInputs(x0, batch, {d_joint.data, d_joint.ld, width_}, dx0);
    if (num_sparse() > 0) {
      for (size_t b = 0; b < batch; ++b) {
        std::memcpy(d_input.embeddings + b * embedding_width(), dx0.data + b * width_,
                    embedding_width() * sizeof(float));
      }
    }
  }

  void BackwardParameters(const ModelInput& input, absl::Span<const float> d_logits,
                          GradientsReady ready) override {
    const size_t batch = input.batch;
    const ConstMatrix x0{x0_.data(), width_, width_};
    const ConstMatrix joint{joint_.data(), joint_width_, joint_width_};
    output_->WeightGradient(absl::MakeConstSpan(&joint, 1), batch, {d_logits.data(), 1, 1});
    ready(output_->begin(), output_->end());
    if (deep_) deep_->BackwardParameters(absl::MakeConstSpan(&x0, 1), batch, ready);
    cross_->BackwardParameters(x0, batch, ready);
  }

 private:
  // The cross layers multiply x_0 element by element, so x_0 must be contiguous here.
  ConstMatrix Concatenate(const ModelInput& input) {
    float* x0 = Grow(x0_, input.batch * width_);
    for (size_t b = 0; b < input.batch; ++b) {
      float* row = x0 + b * width_;
      if (num_sparse() > 0) {
        std::memcpy(row, input.embeddings + b * embedding_width(), embedding_width() * sizeof(float));
      }
      if (num_dense() > 0) {
        std::memcpy(row + embedding_width(), input.dense + b * num_dense(), num_dense() * sizeof(float));
      }
    }
    return {x0, width_, width_};
  }

  const size_t width_;
  size_t joint_width_ = 0;
  const std::unique_ptr<CrossNetwork> cross_;
  std::optional<Mlp> deep_;
  std::optional<Linear> output_;
  AlignedFloats x0_;
  AlignedFloats joint_;
  AlignedFloats d_joint_;
  AlignedFloats d_x0_;
};

}  // namespace

ModelKind DcnKind() {
  return {.name = "dcn",
          .summary = "DCN: cross layers and an MLP side by side",
          .reference = "Wang et al., ADKDD 2017 and WWW 2021",
          .fields = MlpFields(
              {MemberField<&ModelOptions::cross_layers>({.name = "cross_layers",
                                                         .help = "number of cross layers",
                                                         .range = Between(1, kMaxCrossLayers)}),
               MemberField<&ModelOptions::cross>(
                   {.name = "cross",
                    .help = "weight of a cross layer. `matrix`: x0 * (W x + b) + x, DCN-v2; `vector`: "
                            "x0 (w . x) + b + x, the first DCN",
                    .choices = {"matrix", "vector"}})}),
          .build = [](const ModelOptions& options) -> absl::StatusOr<std::unique_ptr<Model>> {
            return std::make_unique<Dcn>(options);
          }};
}

}  // namespace tandem::worker
