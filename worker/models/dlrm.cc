// SPDX-License-Identifier: Apache-2.0
// DLRM (Naumov et al., arXiv:1906.00091). A bottom MLP maps the dense features to one vector of the
// embeddings' dimension. The interaction "dot" computes the dot products of all pairs of vectors, and a top
// MLP reads [bottom output | pairs]. With the interaction "cat" it reads [bottom output | embeddings].
// Without dense features there is no bottom MLP, and the top MLP reads [embeddings | pairs] or [embeddings].

#include <cstring>
#include <optional>
#include <vector>

#include "base/round_up.h"
#include "worker/models/dense_model.h"
#include "worker/models/interaction.h"
#include "worker/models/registry.h"

namespace tandem::worker {
namespace {

class Dlrm final : public DenseModel {
 public:
  explicit Dlrm(const ModelOptions& options)
      : DenseModel(options),
        has_bottom_(options.num_dense > 0),
        cat_(options.interaction == "cat"),
        head_(has_bottom_ ? dim()
              : cat_      ? 0
                          : embedding_width()),
        pairs_(cat_ ? 0 : Interaction::NumPairs(num_sparse() + (has_bottom_ ? 1 : 0))),
        ld_(RoundUp(head_ + pairs_ + Interaction::kSlack, Interaction::kSlack)) {
    if (has_bottom_) {
      MlpOptions bottom = TowerOptions("bottom", num_dense(), options.bottom);
      bottom.output = options.dim;
      bottom.relu_output = true;
      bottom_.emplace(bottom, &parameters_);
    }
    MlpOptions top = TowerOptions("top", head_ + (cat_ ? embedding_width() : pairs_), options.hidden);
    top.output = 1;
    top_.emplace(top, &parameters_);
  }

  void Forward(const ModelInput& input, bool training, uint64_t step, absl::Span<float> logits) override {
    const size_t batch = input.batch;
    // The top MLP's input is [head | pairs | slack]: bottom MLP and interaction write directly into their
    // columns.
    const Matrix x{Grow(top_input_, batch * ld_), ld_, head_ + pairs_};
    const Matrix head{x.data, ld_, head_};
    if (has_bottom_) {
      const ConstMatrix dense{input.dense, num_dense(), num_dense()};
      bottom_->Forward(absl::MakeConstSpan(&dense, 1), batch, training, step, head);
    } else if (!cat_) {
      for (size_t b = 0; b < batch; ++b) {
        std::memcpy(head.data + b * ld_, input.embeddings + b * head_, head_ * sizeof(float));
      }
    }
    if (!cat_) interaction_.Forward(Vectors(input, head), batch, {x.data + head_, ld_, pairs_});
    top_->Forward(TopInput(input), batch, training, step, {logits.data(), 1, 1});
  }

  void BackwardInputs(const ModelInput& input, absl::Span<const float> d_logits,
                      const InputGradients& d_input) override {
    const size_t batch = input.batch;
    const Matrix dx{Grow(d_top_input_, batch * ld_), ld_, head_ + pairs_};
    if (cat_) {
      const Matrix parts[] = {{head_ > 0 ? dx.data : nullptr, ld_, head_},
                              {d_input.embeddings, embedding_width(), embedding_width()}};
      top_->BackwardInputs(batch, {d_logits.data(), 1, 1}, 0.0f, parts);
      return;
    }
    top_->BackwardInputs(batch, {d_logits.data(), 1, 1}, 0.0f, absl::MakeConstSpan(&dx, 1));

    // The head's gradient already contains the direct part; the interaction adds its part.
    const Matrix d_head{dx.data, ld_, head_};
    VectorSetGradients dz;
    dz.rest = d_input.embeddings;
    if (has_bottom_) {
      dz.first = d_head;
    } else {
      dz.rest_add = d_head;
    }
    const ConstMatrix head{top_input_.data(), ld_, head_};
    interaction_.Backward(Vectors(input, head), batch, {dx.data + head_, ld_, pairs_}, dz);
  }

  void BackwardParameters(const ModelInput& input, absl::Span<const float> d_logits,
                          GradientsReady ready) override {
    const size_t batch = input.batch;
    top_->BackwardParameters(TopInput(input), batch, ready);
    // The bottom MLP has no embedding inputs, so no row gradient needs its backward pass.
    if (has_bottom_) {
      const ConstMatrix dense{input.dense, num_dense(), num_dense()};
      bottom_->BackwardInputs(batch, {d_top_input_.data(), ld_, head_}, 0.0f, {});
      bottom_->BackwardParameters(absl::MakeConstSpan(&dense, 1), batch, ready);
    }
  }

 private:
  // The parts of the top MLP's input; those of no columns are skipped.
  std::vector<ConstMatrix> TopInput(const ModelInput& input) const {
    std::vector<ConstMatrix> parts = {{top_input_.data(), ld_, head_ + pairs_}};
    if (cat_) parts.push_back({input.embeddings, embedding_width(), embedding_width()});
    return parts;
  }
  VectorSet Vectors(const ModelInput& input, ConstMatrix head) const {
    return {has_bottom_ ? head : ConstMatrix(), input.embeddings, num_sparse(), dim()};
  }

  const bool has_bottom_;
  const bool cat_;
  const size_t head_;  // columns before the pairs
  const size_t pairs_;
  const size_t ld_;
  std::optional<Mlp> bottom_;
  std::optional<Mlp> top_;
  Interaction interaction_;
  AlignedFloats top_input_;
  AlignedFloats d_top_input_;
};

}  // namespace

ModelKind DlrmKind() {
  return {
      .name = "dlrm",
      .summary = "a bottom MLP over dense features, dot products of all pairs of vectors, and a top MLP",
      .reference = "Naumov et al., arXiv:1906.00091",
      .fields = MlpFields(
          {MemberField<&ModelOptions::bottom>(
               {.name = "bottom",
                .help = "widths of the bottom MLP's hidden layers; its output layer has the width `dim`",
                .range = LayerWidths()}),
           MemberField<&ModelOptions::interaction>(
               {.name = "interaction",
                .help =
                    "what the top MLP reads besides the bottom MLP's output. `dot`: the dot products of all "
                    "pairs of vectors; `cat`: the embeddings themselves",
                .choices = {"dot", "cat"}})}),
      .build = [](const ModelOptions& options) -> absl::StatusOr<std::unique_ptr<Model>> {
        if (options.num_sparse == 0) {
          return absl::InvalidArgumentError(
              "model.kind dlrm pairs up sparse features, and the data has none; use wide_deep");
        }
        return std::make_unique<Dlrm>(options);
      }};
}

}  // namespace tandem::worker
