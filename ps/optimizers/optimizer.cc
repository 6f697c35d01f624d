#include "ps/optimizers/optimizer.h"

#include <array>
#include <cmath>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/suggest.h"
#include "ps/optimizers/kinds.h"

namespace tandem::ps {
namespace {

struct Entry {
  absl::string_view kind;
  OptimizerOr (*make)(const v1::OptimizerConfig&);
};

constexpr std::array<Entry, 8> kEntries = {{
    {"sgd", MakeSgd},
    {"momentum", MakeMomentum},
    {"adagrad", MakeAdagrad},
    {"rowwise_adagrad", MakeRowwiseAdagrad},
    {"adam", MakeAdam},
    {"adamw", MakeAdam},  // its weight decay is a modifier
    {"amsgrad", MakeAmsGrad},
    {"ftrl", MakeFtrl},
}};

constexpr std::array<absl::string_view, kEntries.size()> kKinds = [] {
  std::array<absl::string_view, kEntries.size()> kinds;
  for (size_t i = 0; i < kinds.size(); ++i) kinds[i] = kEntries[i].kind;
  return kinds;
}();

}  // namespace

absl::Status CheckField(absl::string_view field, float value, bool ok, absl::string_view allowed) {
  if (ok && std::isfinite(value)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("optimizer.", field, " is ", value, "; it must be ", allowed));
}

OptimizerOr MakeOptimizer(const v1::OptimizerConfig& config) {
  for (const Entry& entry : kEntries) {
    if (entry.kind != config.kind()) continue;
    TANDEM_RETURN_IF_ERROR(
        CheckField("learning_rate", config.learning_rate(), config.learning_rate() > 0, "finite and > 0"));
    TANDEM_RETURN_IF_ERROR(CheckField("l2", config.l2(), config.l2() >= 0, "finite and >= 0"));
    TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<Optimizer> optimizer, entry.make(config));
    return AddModifiers(config, std::move(optimizer));
  }
  return absl::InvalidArgumentError(absl::StrCat("optimizer.kind is '", config.kind(), "', which is unknown",
                                                 DidYouMean(config.kind(), kKinds)));
}

absl::Span<const absl::string_view> OptimizerKinds() { return kKinds; }

}  // namespace tandem::ps
