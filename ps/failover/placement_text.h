// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_FAILOVER_PLACEMENT_TEXT_H_
#define TANDEM_PS_FAILOVER_PLACEMENT_TEXT_H_

// The placement document of a shard as text: its key in the job's store, and the value there, which is JSON
// so that people can read it.

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tandem/v1/failover.pb.h"

namespace tandem::ps {

// Returns the key of the shard's document: "ps/placement/3".
std::string PlacementKey(uint32_t shard);
// Returns the document as one line of JSON, with the field names of failover.proto.
absl::StatusOr<std::string> PlacementToText(const tandem::v1::ShardPlacement& placement);
// Reads the text of a document; "" is a document of version 0. Fields that this version does not know are
// skipped. Returns DataLoss, naming `key`, for other text.
absl::StatusOr<tandem::v1::ShardPlacement> PlacementFromText(absl::string_view key, absl::string_view text);

}  // namespace tandem::ps

#endif  // TANDEM_PS_FAILOVER_PLACEMENT_TEXT_H_
