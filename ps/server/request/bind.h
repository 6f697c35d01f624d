// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_SERVER_REQUEST_BIND_H_
#define TANDEM_PS_SERVER_REQUEST_BIND_H_

// The second stage of a pull or push: finds the tables that a parsed request names, and checks the request
// against them and against the shard map. After this stage the rest of the server trusts the request: parsing
// and binding find everything that a peer can get wrong before anything changes.

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "ps/server/request/parse.h"
#include "ps/server/table/server_table.h"
#include "ps/server/table/table_registry.h"
#include "ps/wire/value_codec.h"

namespace tandem::ps {

struct BoundSlice : ParsedSlice {
  std::shared_ptr<ServerTable> table;
};

struct BoundRequest : RequestHeader {
  std::vector<BoundSlice> slices;
  uint64_t response_bytes = 0;  // pulls: upper bound of the rows' size in the response
};

// NotFound: an unknown table; names those that exist. InvalidArgument: the worker's rank, an id or the dim
// does not fit the table. FailedPrecondition: an id belongs to another server; names it. ResourceExhausted:
// the response would exceed `max_message_bytes`. Messages name the worker and the table.
absl::StatusOr<BoundRequest> BindPull(ParsedRequest request, const TableRegistry& tables,
                                      size_t max_message_bytes);
// Returns the same errors. InvalidArgument also if a gradient is NaN, infinite or not below kMaxGradient in
// magnitude; the table then counts a refused push.
absl::StatusOr<BoundRequest> BindPush(ParsedRequest request, const TableRegistry& tables);

}  // namespace tandem::ps

#endif  // TANDEM_PS_SERVER_REQUEST_BIND_H_
