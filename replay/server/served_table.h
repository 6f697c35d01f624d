// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_REPLAY_SERVER_SERVED_TABLE_H_
#define TANDEM_REPLAY_SERVER_SERVED_TABLE_H_

#include "replay/server/insert_fence.h"
#include "replay/table/table_registry.h"

namespace tandem::replay {

// A table of a server with the inserts that it has taken.
struct ServedTable : TableEntry {
  InsertFence fence;  // changes under the table's lock
};

// The tables of a server by name.
using ServedTables = TableRegistry<ServedTable>;

}  // namespace tandem::replay

#endif  // TANDEM_REPLAY_SERVER_SERVED_TABLE_H_
