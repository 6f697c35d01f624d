// SPDX-License-Identifier: Apache-2.0
#include "ps/failover/placement_text.h"

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/util/json_util.h"

namespace tandem::ps {

using tandem::v1::ShardPlacement;

std::string PlacementKey(uint32_t shard) { return absl::StrCat("ps/placement/", shard); }

absl::StatusOr<std::string> PlacementToText(const ShardPlacement& placement) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string text;
  const auto status = google::protobuf::util::MessageToJsonString(placement, &text, options);
  if (status.ok()) return text;
  return absl::InternalError(absl::StrCat("a placement cannot be written as JSON: ", status.ToString()));
}

absl::StatusOr<ShardPlacement> PlacementFromText(absl::string_view key, absl::string_view text) {
  ShardPlacement placement;
  if (text.empty()) return placement;
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  const auto status = google::protobuf::util::JsonStringToMessage(std::string(text), &placement, options);
  if (status.ok() && placement.version() > 0) return placement;
  return absl::DataLossError(absl::StrCat("the job's store holds no placement of a shard under '", key,
                                          "': '", absl::CHexEscape(text.substr(0, 100)),
                                          "'; only the job's parameter servers may write this key"));
}

}  // namespace tandem::ps
