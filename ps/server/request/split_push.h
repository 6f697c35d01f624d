// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_SERVER_REQUEST_SPLIT_PUSH_H_
#define TANDEM_PS_SERVER_REQUEST_SPLIT_PUSH_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "base/buffer_pool.h"
#include "ps/server/request/bind.h"
#include "ps/server/table/table_push.h"

namespace tandem::ps {

// Consecutive segments of a TablePush that come from one slice of the request.
struct SliceSegments {
  int slice;      // index in the request
  int count;      // number of segments
  bool reported;  // false: the slice came without segments, and counts as one that is not reported
};

// The gradients of one push, split by table.
struct SplitPush {
  std::vector<std::shared_ptr<ServerTable>> tables;  // in order of appearance in the request
  std::vector<TablePush> parts;                      // [tables]; without `settled`
  std::vector<uint64_t> wire_bytes;                  // [tables]: of the request's payload
  // [tables]: where the response names the segments of the part; empty if the part has none.
  std::vector<std::vector<SliceSegments>> segments;
};

// Makes one TablePush for each table of the push. Several slices of one table become one part, so that an id
// in two of them gets the sum of its gradients. Pooled gradients are expanded to one for each id. A part made
// of one unpooled slice without a learning rate factor refers to the request's memory, which it keeps alive;
// the others are copied to memory of `buffers`.
SplitPush SplitByTable(const BoundRequest& request, BufferPool& buffers);

}  // namespace tandem::ps

#endif  // TANDEM_PS_SERVER_REQUEST_SPLIT_PUSH_H_
