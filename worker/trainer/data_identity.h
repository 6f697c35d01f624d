// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_TRAINER_DATA_IDENTITY_H_
#define TANDEM_WORKER_TRAINER_DATA_IDENTITY_H_

// Says which examples a model was trained on, and how it sees them, so that a run which resumes notices other
// data.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tandem/v1/checkpoint.pb.h"
#include "worker/data/dataset.h"

namespace tandem::worker {

namespace v1 = ::tandem::v1;

// The settings that decide the order of the training examples within an epoch, besides the files.
struct ExampleOrder {
  bool shuffle = true;
  size_t shuffle_buffer = 0;
  uint64_t seed = 1;
};

// Returns the identity of the data that `dataset` was opened with. Blocks while it reads the training and
// validation files: a file of up to 16 MiB whole, of a larger one 256 blocks of 64 KiB at equal distances; of
// more than four files fewer blocks each, but at least eight. Compressed files are identified by their
// compressed contents. Errors are those of reading, and name the file.
absl::StatusOr<v1::DataIdentity> IdentifyData(const DatasetOptions& options, const Dataset& dataset,
                                              const ExampleOrder& order);

// How one identity differs from another, as phrases such as "data.label is 'buy', was 'click'".
struct DataDifferences {
  std::vector<std::string> features;    // columns, their order, what decides their values
  std::vector<std::string> training;    // training files, label, split
  std::vector<std::string> validation;  // files of the validation split
  // Settings that decide the order of the examples within an epoch. They matter only in the midst of one.
  std::vector<std::string> order;
};
// Returns how the features of `now`, a dataset's schema, differ from those of an identity, as such phrases.
std::vector<std::string> CompareFeatures(const v1::DataIdentity& before, const Schema& now);
DataDifferences CompareData(const v1::DataIdentity& before, const v1::DataIdentity& now);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_TRAINER_DATA_IDENTITY_H_
