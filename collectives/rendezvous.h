#ifndef TANDEM_COLLECTIVES_RENDEZVOUS_H_
#define TANDEM_COLLECTIVES_RENDEZVOUS_H_

// The ranks of a group meet in the store, before any of them opens a connection to another.

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "collectives/process_group.h"
#include "collectives/ranks.h"
#include "collectives/store/store.h"

namespace tandem::collectives {

// Announces this rank under "pg/<group>/rank/<rank>" with the `address` on which it will listen, and waits
// until all ranks have come, until `deadline`. Errors: DeadlineExceeded naming the absent ranks;
// AlreadyExists when another process holds this rank of a group of this name; InvalidArgument naming a rank
// that expects another world size, or one whose loopback address the ranks on other hosts could not reach.
absl::Status Meet(Store* store, const ProcessGroupOptions& options, const std::string& address,
                  absl::Time deadline);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_RENDEZVOUS_H_
