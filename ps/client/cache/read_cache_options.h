// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_CLIENT_CACHE_READ_CACHE_OPTIONS_H_
#define TANDEM_PS_CLIENT_CACHE_READ_CACHE_OPTIONS_H_

// The options and statistics of a read cache: the copies of one table's rows in a process that serves a
// model.
//
// A read-only pull (Client::PullAsync) without pooling returns the copy of an id, if the copy was requested
// less than `time_to_live` ago. Otherwise it returns the row as the server has it, or the initial value of an
// absent row.
//
// So a row lacks only updates that are younger than the time to live. Copies are dropped earlier when a
// response shows that their server restarted or loaded a checkpoint, when this client writes their rows
// (WriteRowStates, LoadCheckpoint), and by Client::ClearReadCache. Pushes drop none, those of this client
// included. A pull all of whose rows have copies sends no request. Pulls of 1024 ids and more go around the
// cache while that is measured to be faster (read_gauge.h).
//
// Unlike the cache of cache_options.h, which is for training, a read cache needs no versions and no
// gradients: a row takes half the memory, and a SYNC table may have one. Rows are admitted as in TinyLFU
// (Einziger, Friedman and Manes, ACM Transactions on Storage 2017).

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "tandem/v1/parameter_server.pb.h"

namespace tandem::ps {

namespace v1 = ::tandem::v1;

struct ReadCacheOptions {
  // The memory for rows, index and counters. 0: no cache.
  size_t bytes = 0;
  // The time for which a copy serves, from the start of the pull that requested it. More than 0.
  absl::Duration time_to_live = absl::Seconds(10);
  // Must outlive the client.
  Clock* clock = Clock::Real();
};

// Returns OK, or InvalidArgument naming the table, the option and the allowed values. DENSE tables have no
// cache.
absl::Status ValidateReadCacheOptions(const v1::TableConfig& table, const ReadCacheOptions& options);

// The statistics of one table's read cache since SetReadCache.
struct ReadCacheStatistics {
  uint64_t lookups = 0;    // rows of read-only pulls without pooling that used the cache
  uint64_t hits = 0;       // served by a copy
  uint64_t expired = 0;    // requested because the copy was too old
  uint64_t admitted = 0;   // rows added to the cache
  uint64_t refused = 0;    // rows used no more often than the copy they would have replaced
  uint64_t evicted = 0;    // to make space
  uint64_t forgotten = 0;  // dropped because their rows were replaced, or by ClearReadCache
  uint64_t bypassed = 0;   // rows of large pulls that went around the cache
  uint64_t rows = 0;       // now
  uint64_t bytes = 0;      // now, of ReadCacheOptions::bytes
  uint64_t capacity = 0;   // in rows
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_CLIENT_CACHE_READ_CACHE_OPTIONS_H_
