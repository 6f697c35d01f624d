// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLUSTER_STORE_RECORD_H_
#define TANDEM_CLUSTER_STORE_RECORD_H_

// The changes of a store, as bytes of a log (log.h). A record is a kind, then fields; each field is a u32
// size, little-endian, and its bytes.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace tandem::cluster {

class MemoryStore;

// The kinds, with their fields. Other kinds belong to the users of a log.
inline constexpr char kStoreSet = 'S';           // key, value, key, value, ...
inline constexpr char kStoreSetAndAnswer = 'V';  // key, value; the value answers the request
inline constexpr char kStoreAppend = 'A';        // key, bytes
inline constexpr char kStoreDelete = 'D';        // key
inline constexpr char kStorePush = 'P';          // queue, item
inline constexpr char kStorePop = 'O';           // queue
inline constexpr char kStoreHandOver = 'H';      // request id of a Pop, item: pushed for a popper that waited
inline constexpr char kStoreAnswer = 'R';        // request id, answer

std::string MakeStoreRecord(char kind, absl::Span<const absl::string_view> fields);

struct ParsedStoreRecord {
  char kind = 0;
  std::vector<absl::string_view> fields;  // of the bytes that were parsed
};
// DataLoss if `record` is empty or ends within a field.
absl::StatusOr<ParsedStoreRecord> ParseStoreRecord(absl::string_view record);

// Makes the change of `record` in `store` for the request `request_id`. Returns false, and does nothing, if
// its kind or the number of its fields is none of the above. Errors are those of the store.
absl::StatusOr<bool> ApplyStoreRecord(const ParsedStoreRecord& record, absl::string_view request_id,
                                      MemoryStore* store);

}  // namespace tandem::cluster

#endif  // TANDEM_CLUSTER_STORE_RECORD_H_
