#ifndef TANDEM_COLLECTIVES_STORE_BARRIER_H_
#define TANDEM_COLLECTIVES_STORE_BARRIER_H_

// A barrier through a store: it needs no connection between the ranks, so it works before there is one and
// when one is broken.

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "collectives/store/store.h"

namespace tandem::collectives {

// Blocks until all ranks 0..world_size-1 have called it with this name, at most `timeout`. OK on all ranks or
// on none: the first rank whose time is up decides for all that wait, and all get DeadlineExceeded naming
// every rank that had not come. InvalidArgument for a bad rank or size, and, on all that wait, for ranks that
// expect different world sizes. Errors of the store come back as they are; a store that does not answer is
// waited for as long as it says itself.
//
// The name can be used again, after success and after an error: a rank that came too late for a failed round
// waits in the next one. A rank that dies in it and comes back counts once. Two processes must not play one
// rank.
//
// Cost: some ten short calls for each rank; world_size + 3 keys "barrier/<name>/..." stay.
absl::Status StoreBarrier(Store* store, absl::string_view name, int world_size, int rank,
                          absl::Duration timeout);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_STORE_BARRIER_H_
