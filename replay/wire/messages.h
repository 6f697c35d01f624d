// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_REPLAY_WIRE_MESSAGES_H_
#define TANDEM_REPLAY_WIRE_MESSAGES_H_

// Converts between the types of this module and the messages of tandem/v1/replay.proto. Bytes of a peer may
// have any content: what cannot be converted is InvalidArgument, and what can be has to pass the checks of
// the type.

#include <vector>

#include "absl/status/statusor.h"
#include "google/protobuf/repeated_ptr_field.h"
#include "replay/chunks/signature.h"
#include "replay/chunks/trajectory.h"
#include "replay/table/table.h"
#include "replay/table/table_options.h"
#include "tandem/v1/replay.pb.h"

namespace tandem::replay {

namespace v1 = ::tandem::v1;

using ColumnMessages = google::protobuf::RepeatedPtrField<v1::ReplayColumn>;

v1::ReplayColumn ToProto(const Column& column);
void ToProto(const std::vector<Column>& columns, ColumnMessages* out);
// InvalidArgument: an unknown dtype.
absl::StatusOr<std::vector<Column>> FromProto(const ColumnMessages& columns);
// Returns true if FromProto(message) would equal `columns`.
bool Equal(const ColumnMessages& messages, const std::vector<Column>& columns);

v1::ReplayTableOptions ToProto(const TableOptions& options);
absl::StatusOr<TableOptions> FromProto(const v1::ReplayTableOptions& options);

v1::ReplayTableInfo ToProto(const TableInfo& info);
absl::StatusOr<TableInfo> FromProto(const v1::ReplayTableInfo& info);

// Writes the slices of a trajectory as numbers; `chunk_index[i]` replaces its chunk i.
void SlicesToProto(const Trajectory& trajectory, absl::Span<const uint32_t> chunk_index,
                   google::protobuf::RepeatedField<uint32_t>* slices,
                   google::protobuf::RepeatedField<uint32_t>* slices_end);
// Sets the slices of a trajectory and, with them, refers to `chunks` by index. Sets `used` to the indexes of
// the chunks in the order of trajectory->chunks, which the caller fills in. InvalidArgument: numbers that are
// no slices, or an index out of range. Trajectory::Check must follow.
absl::Status SlicesFromProto(const google::protobuf::RepeatedField<uint32_t>& slices,
                             const google::protobuf::RepeatedField<uint32_t>& slices_end, size_t chunks,
                             Trajectory* trajectory, absl::InlinedVector<uint32_t, 4>* used);

}  // namespace tandem::replay

#endif  // TANDEM_REPLAY_WIRE_MESSAGES_H_
