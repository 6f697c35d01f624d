#include "worker/models/model.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "worker/models/dense_model.h"

namespace tandem::worker {
namespace {

struct Kind {
  const char* name;
  absl::StatusOr<std::unique_ptr<Model>> (*create)(const ModelOptions& options);
};

constexpr Kind kKinds[] = {
    {"lr", CreateLr},         {"fm", CreateFm},   {"wide_deep", CreateWideDeep},
    {"deepfm", CreateDeepFm}, {"dcn", CreateDcn}, {"dlrm", CreateDlrm},
};

// Far beyond what a click model has, and small enough that no product of two overflows an int's BLAS
// dimension.
constexpr int kMaxFeatures = 100000;
constexpr int kMaxDim = 4096;
constexpr int kMaxWidth = 65536;
constexpr int kMaxCrossLayers = 64;
constexpr int64_t kMaxInputWidth = int64_t{1} << 22;

absl::Status OutOfRange(absl::string_view field, double value, absl::string_view expected) {
  return absl::InvalidArgumentError(absl::StrCat("model.", field, " is ", value, "; it must be ", expected));
}

absl::Status CheckWidths(absl::string_view field, const std::vector<int>& widths) {
  for (int width : widths) {
    if (width < 1 || width > kMaxWidth) {
      return OutOfRange(field, width, absl::StrCat("a list of layer widths from 1 to ", kMaxWidth));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckOptions(const ModelOptions& options) {
  auto features = [](absl::string_view field, int n) {
    return n >= 0 && n <= kMaxFeatures ? absl::OkStatus()
                                       : OutOfRange(field, n, absl::StrCat("from 0 to ", kMaxFeatures));
  };
  absl::Status status = features("num_dense", options.num_dense);
  status.Update(features("num_sparse", options.num_sparse));
  if (!status.ok()) return status;
  if (options.num_dense == 0 && options.num_sparse == 0) {
    return absl::InvalidArgumentError(
        "the data has neither sparse nor dense features; a model needs at least one");
  }
  if (options.dim < 1 || options.dim > kMaxDim) {
    return OutOfRange("dim", options.dim, absl::StrCat("from 1 to ", kMaxDim));
  }
  const int64_t width = int64_t{options.num_sparse} * options.dim + options.num_dense;
  if (width > kMaxInputWidth) {
    return OutOfRange("num_sparse * dim + num_dense", static_cast<double>(width),
                      absl::StrCat("at most ", kMaxInputWidth));
  }
  if (!(options.dropout >= 0.0f && options.dropout < 1.0f))
    return OutOfRange("dropout", options.dropout, "in [0, 1)");
  status = CheckWidths("hidden", options.hidden);
  status.Update(CheckWidths("bottom", options.bottom));
  if (status.ok() && (options.cross_layers < 1 || options.cross_layers > kMaxCrossLayers)) {
    status = OutOfRange("cross_layers", options.cross_layers, absl::StrCat("from 1 to ", kMaxCrossLayers));
  }
  return status;
}

}  // namespace

std::vector<std::string> ModelKinds() {
  std::vector<std::string> names;
  for (const Kind& kind : kKinds) names.emplace_back(kind.name);
  return names;
}

absl::StatusOr<std::unique_ptr<Model>> CreateModel(const ModelOptions& options) {
  for (const Kind& kind : kKinds) {
    if (options.kind != kind.name) continue;
    absl::Status status = CheckOptions(options);
    if (!status.ok()) return status;
    return kind.create(options);
  }
  return absl::InvalidArgumentError(absl::StrCat("model.kind is \"", options.kind, "\"; the kinds are ",
                                                 absl::StrJoin(ModelKinds(), ", ")));
}

}  // namespace tandem::worker
