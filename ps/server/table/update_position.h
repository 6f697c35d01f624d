// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_SERVER_TABLE_UPDATE_POSITION_H_
#define TANDEM_PS_SERVER_TABLE_UPDATE_POSITION_H_

#include <cstdint>

namespace tandem::ps {

// The update of a GBA table to which server 0 has assigned a push (v1::PushPlace).
struct UpdatePosition {
  uint64_t update = 0;  // number of the update, from 1; 0: not assigned
  bool stale = false;   // the push is too old: it counts for this update, but its gradients are left out
  uint64_t first = 0;   // number of the first update since the table became GBA on server 0; 0: not known
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_SERVER_TABLE_UPDATE_POSITION_H_
