// SPDX-License-Identifier: Apache-2.0
#include "ps/failover/copying.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/bytes.h"
#include "base/status.h"
#include "ps/log/record.h"
#include "ps/snapshot/snapshot_file.h"

namespace tandem::ps {

Copying::Copying(const ServerParts* server, ShippedLog* log, std::string id, LongestTime* longest_pause)
    : server_(*server),
      log_(*log),
      id_(std::move(id)),
      longest_pause_(*longest_pause),
      capture_(server),
      buckets_(OwnBuckets(*server->tables)) {}

void Copying::Begin() { Post(&Copying::CopyState); }

void Copying::Post(absl::Status (Copying::*step)()) {
  server_.background->Post([self = shared_from_this(), step] {
    if (*self->server_.stopping) return;
    const absl::Status status = (self.get()->*step)();
    if (!status.ok()) self->log_.FailLink(self->id_, status);
  });
}

absl::Status Copying::CopyState() {
  v1::SnapshotState state;
  TANDEM_RETURN_IF_ERROR(server_.requests->BetweenPushes(&longest_pause_, [&]() -> absl::Status {
    TANDEM_ASSIGN_OR_RETURN(const uint64_t position, log_.BeginCopy(id_));
    state = capture_.CaptureState(position);
    return absl::OkStatus();
  }));
  if (state.ByteSizeLong() > kMostStateBytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the pushes that wait for other workers need ", state.ByteSizeLong(), " bytes in a copy, and ",
        kMostStateBytes, " are the limit: workers run too far ahead, or lower --max-parked"));
  }
  std::string record;
  AppendRecord(RecordKind::kState, state.position(), 0, Bytes(state.SerializeAsString()), &record);
  TANDEM_RETURN_IF_ERROR(log_.SendState(id_, std::move(record)));
  return CopyNextBucket();
}

absl::Status Copying::CopyNextBucket() {
  if (next_bucket_ == buckets_.size() || !capture_.has_tables()) return log_.EndCopy(id_);
  const uint32_t bucket = buckets_[next_bucket_++];
  return server_.requests->BetweenPushes(&longest_pause_, [&]() -> absl::Status {
    const uint64_t position = log_.last_position();
    TANDEM_ASSIGN_OR_RETURN(std::vector<BucketCopy> copied, capture_.CopyBucket(bucket, position));
    const auto copies = std::make_shared<std::vector<BucketCopy>>(std::move(copied));
    const auto encode = [copies, position] {
      std::vector<std::string> records;
      std::string record;
      const auto add = [&](const Bytes& body) {
        // Small buckets share a message.
        if (!record.empty() && record.size() + body.size() > kRecordBytes) {
          records.push_back(std::move(record));
          record.clear();
        }
        AppendRecord(RecordKind::kRows, position, 0, body, &record);
        return absl::OkStatus();
      };
      for (BucketCopy& copy : *copies) {
        (void)copy.VisitBodies(kRecordBytes, add);  // `add` returns no error
        copy = BucketCopy();
      }
      records.push_back(std::move(record));
      return records;
    };
    return log_.SendCopied(id_, encode, [self = shared_from_this()](const absl::Status& sent) {
      if (sent.ok()) self->Post(&Copying::CopyNextBucket);
    });
  });
}

}  // namespace tandem::ps
