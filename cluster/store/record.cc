// SPDX-License-Identifier: Apache-2.0
#include "cluster/store/record.h"

#include <cstdint>
#include <cstring>

#include "base/status.h"
#include "cluster/store/memory_store.h"

namespace tandem::cluster {

std::string MakeStoreRecord(char kind, absl::Span<const absl::string_view> fields) {
  std::string record(1, kind);
  for (absl::string_view field : fields) {
    const uint32_t size = static_cast<uint32_t>(field.size());
    record.append(reinterpret_cast<const char*>(&size), sizeof(size));
    record.append(field.data(), field.size());
  }
  return record;
}

absl::StatusOr<ParsedStoreRecord> ParseStoreRecord(absl::string_view record) {
  if (record.empty()) return absl::DataLossError("an empty record");
  ParsedStoreRecord parsed{.kind = record[0], .fields = {}};
  record.remove_prefix(1);
  while (!record.empty()) {
    uint32_t size = 0;
    if (record.size() < sizeof(size)) return absl::DataLossError("a record that ends within a field");
    std::memcpy(&size, record.data(), sizeof(size));
    record.remove_prefix(sizeof(size));
    if (record.size() < size) return absl::DataLossError("a record that ends within a field");
    parsed.fields.push_back(record.substr(0, size));
    record.remove_prefix(size);
  }
  return parsed;
}

absl::StatusOr<bool> ApplyStoreRecord(const ParsedStoreRecord& record, absl::string_view request_id,
                                      MemoryStore* store) {
  const std::vector<absl::string_view>& fields = record.fields;
  const size_t n = fields.size();
  if (record.kind == kStoreSet && n % 2 == 0) {
    for (size_t i = 0; i < n; i += 2) TANDEM_RETURN_IF_ERROR(store->Set(fields[i], fields[i + 1]));
    store->RestoreAnswer(request_id, "");
  } else if (record.kind == kStoreSetAndAnswer && n == 2) {
    TANDEM_RETURN_IF_ERROR(store->Set(fields[0], fields[1]));
    store->RestoreAnswer(request_id, fields[1]);
  } else if (record.kind == kStoreAppend && n == 2) {
    TANDEM_RETURN_IF_ERROR(store->Append(fields[0], fields[1], request_id).status());
  } else if (record.kind == kStoreDelete && n == 1) {
    TANDEM_RETURN_IF_ERROR(store->Delete(fields[0], request_id).status());
  } else if (record.kind == kStorePush && n == 2) {
    TANDEM_RETURN_IF_ERROR(store->Push(fields[0], fields[1], request_id));
  } else if (record.kind == kStorePop && n == 1) {
    TANDEM_RETURN_IF_ERROR(store->TryPop(fields[0], request_id).status());
  } else if (record.kind == kStoreHandOver && n == 2) {
    store->RestoreAnswer(fields[0], fields[1]);
    store->RestoreAnswer(request_id, "");
  } else if (record.kind == kStoreAnswer && n == 2) {
    store->RestoreAnswer(fields[0], fields[1]);
  } else {
    return false;
  }
  return true;
}

}  // namespace tandem::cluster
