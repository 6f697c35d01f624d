// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_SUBSCRIPTION_ROW_CHANGES_H_
#define TANDEM_PS_SUBSCRIPTION_ROW_CHANGES_H_

#include <cstdint>
#include <string>
#include <vector>

namespace tandem::ps {

// How the rows of one bucket of a table have changed. To apply it: if `whole`, drop all rows of the bucket;
// drop the rows of `removed`; put the rows of `ids`. A row that a subscriber does not have reads as its
// initial value.
struct RowChanges {
  std::string table;
  uint32_t bucket = 0;  // ps/shard_map.h
  bool whole = false;
  std::vector<uint64_t> removed;
  std::vector<uint64_t> ids;  // ascending
  uint32_t dim = 0;
  std::vector<float> rows;  // [ids.size() x dim]: embeddings, without optimizer state
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_SUBSCRIPTION_ROW_CHANGES_H_
