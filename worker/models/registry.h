// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_MODELS_REGISTRY_H_
#define TANDEM_WORKER_MODELS_REGISTRY_H_

// The descriptions of the models. To add one, write its source file with a function that returns its
// ModelKind, and list that function in model.cc.

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "base/config_field.h"
#include "base/kind_registry.h"
#include "worker/models/model.h"

namespace tandem::worker {

using ModelField = ConfigField<ModelOptions>;
// `build` makes the model. Its options have passed the checks of CreateModel that hold for every kind; it
// checks what only its kind requires of the data.
using ModelKind =
    ConfigKind<ModelOptions, absl::StatusOr<std::unique_ptr<Model>> (*)(const ModelOptions& options)>;
using ModelRegistry = KindRegistry<ModelOptions, decltype(ModelKind::build)>;

// Returns the registry of all models. A job file may give every field of every kind, whatever its own kind
// is, so that another kind can be chosen for one run.
const ModelRegistry& Models();

// Returns the fields of a model with an MLP: the hidden layers, then `own`, then dropout and batch
// normalization.
std::vector<ModelField> MlpFields(std::vector<ModelField> own = {});
// The widths that a list of layers may have.
Range LayerWidths();

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_MODELS_REGISTRY_H_
