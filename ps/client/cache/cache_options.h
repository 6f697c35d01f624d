#ifndef TANDEM_PS_CLIENT_CACHE_CACHE_OPTIONS_H_
#define TANDEM_PS_CLIENT_CACHE_CACHE_OPTIONS_H_

// What a worker may keep of a table, how stale that may get, and what came of it.
//
// The cache is that of HET (Miao et al., "HET: Scaling out Huge Embedding Model Training via Cache-enabled
// Distributed Framework", VLDB 2022): rows with versions and clocks of their own, asked for again under a
// staleness bound, that move with the worker's own gradients; gradients added up at the worker. Which rows
// are worth their bytes is decided as in TinyLFU (Einziger, Friedman and Manes, ACM Transactions on Storage
// 2017).
//
// A row's clock is how often this worker has used its copy: a worker updates what it uses, and others like it
// do so as often, so that a bound on uses is one on the row's own updates that a copy may lack, hot or rare.
// A bound on the table's age would refresh rare rows at every use, or leave hot ones standing still.
//
// What a pull returns for an id, with V the most updates of its server's table that an answer has told of:
//   a copy    that came as of a version v >= V - max_age and has served fewer than max_uses pulls since. New
//             copies serve fewer: twice as many as the row has come times before.
//   the row   as the server has it, without gradients that are held back here, else. A copy older than
//   max_age that has uses left goes on if its row has
//             not been updated since v.
// Pulls that are under way together do not see each other's answers: each may use what is here.
// A copy moves with every gradient of this worker, by the step by which the row's gradients have moved the
// server's row between the copies before: a least-squares fit of the row's changes to the sums of gradients,
// older ones counting half as much each time. So it need not know the optimizer, and, where other workers'
// gradients are like its own, makes up for theirs too. It never goes further than twice what the row went
// from one copy to the next, and what comes from the server takes its place: errors do not add up.
// Rows are kept as they came over the wire (WireOptions), decoded; sums of held-back gradients go over it
// like any gradient, through its error feedback where it has one. A server that started anew, or whose tables
// were loaded from a checkpoint, is noticed by its answers' generation: pulls after the first such answer use
// no older copy.

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "tandem/v1/parameter_server.pb.h"

namespace tandem::ps {

namespace v1 = ::tandem::v1;

struct CacheOptions {
  size_t bytes = 0;          // of rows, sums of gradients, index and counters; 0: no cache
  uint32_t max_uses = 8;     // pulls that a copy serves before its row is fetched again, 1 .. 65535
  uint64_t max_age = 10000;  // in updates of the table (one for each push of each worker), < 2^31
  // Gradients of a cached row are added up here until `push_bound` pushes of it came together, the row leaves
  // the cache or Client::Flush; then they go as one, with the learning rate factor of the push that takes
  // them along. 1: every gradient goes at once.
  uint32_t push_bound = 1;
};

// OK, or InvalidArgument naming table, option and what is allowed. SYNC tables have no cache: their rows are
// bit-identical however many workers and servers there are, and every row that is pulled is then updated. GBA
// tables leave out pushes older than their staleness, so max_age must be below it, and collect gradients
// themselves: push_bound must be 1.
absl::Status ValidateCacheOptions(const v1::TableConfig& table, const CacheOptions& options);

// Of one table's cache, since it was set. Rows of read-only and pooled pulls, which go around it, are not in.
struct CacheStatistics {
  uint64_t lookups = 0;         // rows pulled
  uint64_t locally_served = 0;  // served without asking
  uint64_t unchanged = 0;       // asked for because of their age, and as they were
  uint64_t refreshed = 0;       // had a copy, but a newer row came
  uint64_t missed = 0;          // had none
  uint64_t admitted = 0;        // rows that came to stay
  uint64_t refused = 0;         // rows not worth another's place
  uint64_t evicted = 0;
  uint64_t forgotten = 0;  // because their server's rows were replaced as a whole
  uint64_t rows = 0;       // now
  uint64_t bytes = 0;      // now, of `CacheOptions::bytes`
  uint64_t capacity = 0;   // rows
  // Of pulls, ids and rows without headers, and what they would be with eight bytes an id and every row.
  uint64_t request_bytes = 0;
  uint64_t response_bytes = 0;
  uint64_t plain_request_bytes = 0;
  uint64_t plain_response_bytes = 0;
  // How old served rows were in updates of the table, by the answer to their pull; 0 where the server had no
  // newer one. Their own updates, and the worker's that they have followed, are fewer.
  double age_mean = 0;
  uint64_t age_max = 0;
  uint64_t held_gradients = 0;  // ever held back, of single rows and pushes
  uint64_t held_rows = 0;       // rows with held-back gradients now

  uint64_t hits() const { return locally_served + unchanged; }
  // This and another worker's, or another table's.
  void Add(const CacheStatistics& other);
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_CLIENT_CACHE_CACHE_OPTIONS_H_
