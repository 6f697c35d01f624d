// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_REPLAY_TABLE_DEFAULT_DEADLINE_H_
#define TANDEM_REPLAY_TABLE_DEFAULT_DEADLINE_H_

#include "absl/time/time.h"
#include "base/clock.h"

namespace tandem::replay {

// How long a call waits for its table if its caller gives no deadline. The error then says what the table
// waits for. absl::InfiniteFuture() waits without a limit.
inline constexpr absl::Duration kDefaultWait = absl::Minutes(1);

// Returns the deadline of a call that begins now.
inline absl::Time DefaultDeadline() { return MonotonicNow() + kDefaultWait; }

}  // namespace tandem::replay

#endif  // TANDEM_REPLAY_TABLE_DEFAULT_DEADLINE_H_
