// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_CLIENT_CACHE_CACHE_OPTIONS_H_
#define TANDEM_PS_CLIENT_CACHE_CACHE_OPTIONS_H_

// The options and statistics of a worker's cache of one table, and what pulls and pushes with a cache mean.
//
// The cache follows HET (Miao et al., "HET: Scaling out Huge Embedding Model Training via Cache-enabled
// Distributed Framework", VLDB 2022). Each cached row has a version and a clock, and is requested again under
// a staleness bound. It moves with the worker's own gradients, which may be accumulated at the worker. Rows
// are admitted as in TinyLFU (Einziger, Friedman and Manes, ACM Transactions on Storage 2017).
//
// The clock of a row counts how often this worker has used its copy. A worker updates the rows that it uses,
// and the other workers do so about as often. So a bound on uses bounds the row's own updates that a copy may
// lack, for hot and rare rows alike. A bound on the table's age alone would refresh rare rows at every use,
// or never refresh hot ones.
//
// Let V be the largest number of updates of the table at the id's server that a response has reported. A pull
// returns for an id
//
// - the copy, if it has version v >= V - max_age and has served fewer than min(max_uses, 2 * arrivals) pulls
//   since it arrived; arrivals counts how often the row has arrived so far;
// - the copy, if it is older than max_age but has uses left, and the server reports that the row has not been
//   updated since v;
// - else the row as the server has it, without the gradients that are deferred here.
//
// Pulls that are under way at the same time do not see each other's responses: each of them may use the
// copies present at its start.
//
// A copy moves with every gradient of this worker. The step size is the one by which the row's gradients have
// moved the server's row between earlier copies: a least-squares fit of the row's changes to the sums of
// gradients, in which each older change counts half as much. So the cache need not know the optimizer, and it
// also accounts for other workers if their gradients are similar. A copy never moves further than twice the
// distance between two consecutive copies. Rows from the server replace it, so errors do not accumulate.
//
// Rows are stored decoded, as they arrived (WireOptions). Sums of deferred gradients are sent like all
// gradients, with error feedback if the table has it. Each response carries the server's generation, which
// changes when the server restarts or loads a checkpoint. Pulls after such a response use no older copy.

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "tandem/v1/parameter_server.pb.h"

namespace tandem::ps {

namespace v1 = ::tandem::v1;

struct CacheOptions {
  // The memory for rows, sums of gradients, index and counters. 0: no cache.
  size_t bytes = 0;
  // The pulls that a copy serves before its row is requested again, 1 .. 65535.
  uint32_t max_uses = 8;
  // The largest age of a copy in updates of the table (one for each push of each worker), < 2^31.
  uint64_t max_age = 10000;
  // The number of pushes of a cached row whose gradients are accumulated before they are sent as one. They
  // are sent earlier if the row leaves the cache, or by Client::PushDeferred. The sum is sent with the
  // learning rate factor of the push that carries it. 1 .. 2^20; 1: every gradient is sent at once.
  uint32_t push_bound = 1;
};

// Returns OK, or InvalidArgument naming the table, the option and the allowed values. Besides the ranges
// above:
//
// - DENSE tables have no cache.
// - SYNC tables have no cache. Their rows are bit-identical for any number of workers and servers, and each
//   pulled row is then updated.
// - GBA tables leave out pushes that are older than their staleness, so max_age must be smaller. They
//   accumulate gradients themselves, so push_bound must be 1.
absl::Status ValidateCacheOptions(const v1::TableConfig& table, const CacheOptions& options);

// The statistics of one table's cache since SetCache. Rows of read-only and pooled pulls, which bypass the
// cache, are not counted.
struct CacheStatistics {
  uint64_t lookups = 0;         // rows pulled
  uint64_t locally_served = 0;  // served by a copy without a request
  uint64_t unchanged = 0;       // requested because of their age, but not updated
  uint64_t refreshed = 0;       // had a copy, but a newer row arrived
  uint64_t missed = 0;          // had no copy
  uint64_t admitted = 0;        // rows added to the cache
  uint64_t refused = 0;         // rows used no more often than the copy they would have replaced
  uint64_t evicted = 0;
  // Copies dropped because their server restarted or loaded a checkpoint, or because their rows moved to or
  // from workers (Client::ReadRowStates, WriteRowStates).
  uint64_t forgotten = 0;
  uint64_t rows = 0;      // now
  uint64_t bytes = 0;     // now, of CacheOptions::bytes
  uint64_t capacity = 0;  // in rows
  // The bytes of ids, versions and rows in pulls without headers, and what they would be without a cache:
  // eight bytes per id, and all rows.
  uint64_t request_bytes = 0;
  uint64_t response_bytes = 0;
  uint64_t plain_request_bytes = 0;
  uint64_t plain_response_bytes = 0;
  // The age of the rows served, in updates of the table, as of the response to their pull; 0 if the server
  // had no newer row. A copy lacks fewer updates of its own row: not every update concerns the row, and the
  // copy follows this worker's gradients.
  double age_mean = 0;
  uint64_t age_max = 0;
  // Deferred gradients since SetCache; one row of one push counts 1.
  uint64_t held_gradients = 0;
  uint64_t held_rows = 0;  // rows with deferred gradients now

  uint64_t hits() const { return locally_served + unchanged; }
  // Adds the statistics of another worker or another table.
  void Add(const CacheStatistics& other);
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_CLIENT_CACHE_CACHE_OPTIONS_H_
