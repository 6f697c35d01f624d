// SPDX-License-Identifier: Apache-2.0
#include "worker/models/model.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "worker/models/registry.h"

namespace tandem::worker {

// Each is defined in the source file of its kind.
ModelKind LrKind();
ModelKind FmKind();
ModelKind DnnKind();
ModelKind WideDeepKind();
ModelKind DeepFmKind();
ModelKind DcnKind();
ModelKind DlrmKind();

namespace {

// Far beyond what a click model has, and small enough that no product of two overflows an int's BLAS
// dimension.
constexpr int kMaxFeatures = 100000;
constexpr int kMaxDim = 4096;
constexpr int kMaxWidth = 65536;
constexpr int64_t kMaxInputWidth = int64_t{1} << 22;

ModelField DimField() {
  return MemberField<&ModelOptions::dim>(
      {.name = "dim", .help = "embedding dimension", .range = Between(1, kMaxDim)});
}

absl::Status OutOfRange(absl::string_view field, double value, absl::string_view expected) {
  return absl::InvalidArgumentError(absl::StrCat("model.", field, " is ", value, "; it must be ", expected));
}

// Checks what the data determines.
absl::Status CheckFeatures(const ModelOptions& options) {
  const std::pair<absl::string_view, int> counts[] = {{"num_dense", options.num_dense},
                                                      {"num_sparse", options.num_sparse}};
  for (const auto& [field, n] : counts) {
    if (n < 0 || n > kMaxFeatures) return OutOfRange(field, n, absl::StrCat("from 0 to ", kMaxFeatures));
  }
  if (options.num_dense == 0 && options.num_sparse == 0) {
    return absl::InvalidArgumentError(
        "the data has neither sparse nor dense features; a model needs at least one");
  }
  const int64_t width = int64_t{options.num_sparse} * options.dim + options.num_dense;
  if (width > kMaxInputWidth) {
    return OutOfRange("num_sparse * dim + num_dense", static_cast<double>(width),
                      absl::StrCat("at most ", kMaxInputWidth));
  }
  return absl::OkStatus();
}

// Returns how many weights the layers of an MLP have, without biases.
double LayerWeights(double in, const std::vector<int>& widths) {
  double weights = 0;
  for (const int width : widths) {
    weights += in * width;
    in = width;
  }
  return weights;
}

// Returns how many weights the layers of the model have at least. In a double, because each factor has passed
// its own check only.
double LeastWeights(const ModelOptions& options) {
  const double dense = options.num_dense, embeddings = double{1} * options.num_sparse * options.dim;
  if (options.kind == "lr" || options.kind == "fm") return 0;
  if (options.kind == "dcn") {
    const double width = embeddings + dense;
    return (options.cross == "vector" ? 1 : width) * width * options.cross_layers +
           LayerWeights(width, options.hidden);
  }
  if (options.kind == "dlrm") {
    std::vector<int> bottom = options.bottom;
    bottom.push_back(options.dim);
    const double vectors = options.num_sparse + (options.num_dense > 0 ? 1 : 0);
    const double top = options.interaction == "cat" ? embeddings : vectors * (vectors - 1) / 2;
    return (options.num_dense > 0 ? LayerWeights(dense, bottom) : 0) + LayerWeights(top, options.hidden);
  }
  return LayerWeights(embeddings + dense, options.hidden);
}

}  // namespace

const ModelRegistry& Models() {
  static const auto* const registry = [] {
    std::vector<ModelKind> kinds = {LrKind(),     FmKind(),  DnnKind(), WideDeepKind(),
                                    DeepFmKind(), DcnKind(), DlrmKind()};
    for (ModelKind& kind : kinds) kind.fields.insert(kind.fields.begin(), DimField());
    return new ModelRegistry("model", std::move(kinds));
  }();
  return *registry;
}

Range LayerWidths() { return Between(1, kMaxWidth); }

std::vector<ModelField> MlpFields(std::vector<ModelField> own) {
  std::vector<ModelField> fields = {MemberField<&ModelOptions::hidden>(
      {.name = "hidden",
       .help = "widths of the MLP's hidden layers (`dlrm`: of the top MLP)",
       .range = LayerWidths()})};
  fields.insert(fields.end(), own.begin(), own.end());
  fields.push_back(MemberField<&ModelOptions::dropout>(
      {.name = "dropout", .help = "after each hidden layer, in training only", .range = Fraction()}));
  fields.push_back(MemberField<&ModelOptions::batch_norm>(
      {.name = "batch_norm",
       .help = "batch normalization of each hidden layer, before its ReLU. `local`: mean and variance of the "
               "worker's own batch, as PyTorch's BatchNorm1d under DDP; `sync`: of the global batch, as "
               "SyncBatchNorm, for two small all-reduces a layer and step. Evaluation uses running averages, "
               "which are averaged over the workers at the end of a pass and saved in checkpoints",
       .choices = {"none", "local", "sync"}}));
  fields.push_back(MemberField<&ModelOptions::batch_norm_momentum>(
      {.name = "batch_norm_momentum",
       .help =
           "weight of a new batch in the running averages, as in PyTorch (1 - Keras's momentum); less for "
           "a batch that is smaller than others, as the last of an epoch",
       .range = {.min = 0, .max = 1, .above_min = true}}));
  fields.push_back(MemberField<&ModelOptions::batch_norm_epsilon>(
      {.name = "batch_norm_epsilon", .help = "added to the variance before its root", .range = Above(0)}));
  return fields;
}

std::vector<std::string> ModelKinds() {
  const absl::Span<const absl::string_view> names = Models().names();
  return {names.begin(), names.end()};
}

absl::StatusOr<std::unique_ptr<Model>> CreateModel(const ModelOptions& options) {
  TANDEM_ASSIGN_OR_RETURN(const ModelKind* const kind, Models().Get(options.kind));
  TANDEM_RETURN_IF_ERROR(Models().ValidateAllFields(*kind, options));
  TANDEM_RETURN_IF_ERROR(CheckFeatures(options));
  const double weights = LeastWeights(options), most = static_cast<double>(options.max_parameters);
  if (weights > most) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the layers of model.kind %s have %.0f weights and more, and at most %.0f are possible%s",
        options.kind, weights, most,
        options.max_parameters < kMostParameters
            ? ", which is the number of dense parameters in the checkpoint"
            : ": lower model.hidden, model.dim or the number of layers"));
  }
  return kind->build(options);
}

}  // namespace tandem::worker
