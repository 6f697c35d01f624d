#ifndef TANDEM_PS_OPTIMIZERS_KINDS_H_
#define TANDEM_PS_OPTIMIZERS_KINDS_H_

// The makers behind MakeOptimizer, one per file of this folder, and the checks they share. A maker checks the
// fields that only its kind has; learning_rate and l2 were checked before it is called.

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ps/optimizers/optimizer.h"

namespace tandem::ps {

using OptimizerOr = absl::StatusOr<std::unique_ptr<Optimizer>>;

OptimizerOr MakeSgd(const v1::OptimizerConfig& config);
OptimizerOr MakeMomentum(const v1::OptimizerConfig& config);
OptimizerOr MakeAdagrad(const v1::OptimizerConfig& config);
OptimizerOr MakeRowwiseAdagrad(const v1::OptimizerConfig& config);
OptimizerOr MakeAdam(const v1::OptimizerConfig& config);
OptimizerOr MakeAmsGrad(const v1::OptimizerConfig& config);
OptimizerOr MakeFtrl(const v1::OptimizerConfig& config);

// `base` with the weight decay, clipping and warm-up that `config` asks for; `base` itself when it asks for
// none.
OptimizerOr AddModifiers(const v1::OptimizerConfig& config, std::unique_ptr<Optimizer> base);

// InvalidArgument("optimizer.<field> is <value>; it must be <allowed>") unless `ok` and the value is finite.
absl::Status CheckField(absl::string_view field, float value, bool ok, absl::string_view allowed);

}  // namespace tandem::ps

#endif  // TANDEM_PS_OPTIMIZERS_KINDS_H_
