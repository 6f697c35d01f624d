// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_REPLAY_CLIENT_MAY_REPEAT_H_
#define TANDEM_REPLAY_CLIENT_MAY_REPEAT_H_

#include "absl/status/status.h"

namespace tandem::replay {

// Returns true if a call that ended with `status` may be made again and may then succeed: it was late, the
// connection or the server went away, or another call took its place. Otherwise the server has refused it.
inline bool MayRepeat(const absl::Status& status) {
  return absl::IsDeadlineExceeded(status) || absl::IsUnavailable(status) || absl::IsCancelled(status) ||
         absl::IsAborted(status);
}

}  // namespace tandem::replay

#endif  // TANDEM_REPLAY_CLIENT_MAY_REPEAT_H_
