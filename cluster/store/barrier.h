// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLUSTER_STORE_BARRIER_H_
#define TANDEM_CLUSTER_STORE_BARRIER_H_

// A barrier through a store. It needs no connection between the ranks, so it works before there is one and
// when one is broken.

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cluster/store/store.h"

namespace tandem::cluster {

// Blocks until all ranks 0..world_size-1 have called it with this name, at most `timeout`. It returns OK on
// all ranks or on none. The first rank whose time is up decides for all waiting ranks, and all get
// DeadlineExceeded naming every rank that had not come. InvalidArgument for a bad rank or size and, on all
// waiting ranks, for ranks that expect different world sizes. Errors of the store are returned as they are. A
// call to a store that does not respond takes as long as the store's own time-out.
//
// The name can be used again, after success and after an error. A rank that came too late for a failed round
// waits in the next one. A rank that dies in the barrier and comes back counts once. Two processes must not
// use the same rank.
//
// Cost: about ten short calls for each rank; world_size + 3 keys "barrier/<name>/..." stay in the store.
absl::Status StoreBarrier(Store* store, absl::string_view name, int world_size, int rank,
                          absl::Duration timeout);

}  // namespace tandem::cluster

#endif  // TANDEM_CLUSTER_STORE_BARRIER_H_
