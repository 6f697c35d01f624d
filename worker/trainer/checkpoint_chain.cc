// SPDX-License-Identifier: Apache-2.0
#include "worker/trainer/checkpoint_chain.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "ps/checkpoint/checkpoint_dir.h"

namespace tandem::worker {

ps::SaveOptions CheckpointChain::OptionsFor(uint64_t step) const {
  ps::SaveOptions options;
  if (most_deltas_ == 0) return options;
  options.name = ps::CheckpointName(step);
  const bool complete = last_.empty() || last_ == options.name || deltas_ >= most_deltas_ ||
                        delta_bytes_ > complete_bytes_ / 2 ||
                        !ps::ReadManifest(absl::StrCat(directory_, "/", last_)).ok();
  if (!complete) options.base = last_;
  return options;
}

void CheckpointChain::Committed(const std::string& path, const v1::CheckpointManifest& manifest) {
  uint64_t bytes = 0;
  for (const v1::CheckpointFile& file : manifest.files()) bytes += file.bytes();
  last_ = std::filesystem::path(path).filename().string();
  if (manifest.base().empty()) {
    deltas_ = 0;
    delta_bytes_ = 0;
    complete_bytes_ = bytes;
  } else {
    ++deltas_;
    delta_bytes_ += bytes;
  }
}

}  // namespace tandem::worker
