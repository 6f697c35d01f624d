#ifndef TANDEM_PS_CLIENT_CACHE_CACHE_OPTIONS_H_
#define TANDEM_PS_CLIENT_CACHE_CACHE_OPTIONS_H_

// What a worker may keep of a table, how stale that may get, and what came of it.
//
// The cache is that of HET (Miao et al., "HET: Scaling out Huge Embedding Model Training via Cache-enabled
// Distributed Framework", VLDB 2022): rows with versions, asked for again under a staleness bound, gradients
// added up at the worker. Which rows are worth their bytes is decided as in TinyLFU (Einziger, Friedman and
// Manes, ACM Transactions on Storage 2017).
//
// What a pull of step t returns for an id, with V the version of its server's answer (all of the table's
// updates up to V are done when the server looks at the rows):
//   asked     The row as of a version v with v >= V - max_age, or a row that no update has touched between
//   its
//             v and V. Asked are all ids that are not used unasked.
//   unasked   With recheck = n > 0: a copy for which the above held when a pull of step >= t - n asked.
//   Nothing
//             is known of what was done since; in time that is n of this worker's steps and the pulls that
//             ran ahead. A worker whose every pull overlaps at most w own steps and whose n + w steps see at
//             most u updates of the table reads rows at most max_age + u updates old.
//   Of a worker's own gradients the same holds as of others': a row may lack those of its last max_age
//   updates. With local_update copies have them at once, as plain SGD would apply them.
// max_age = 0 and recheck = 0: as without a cache, in fewer bytes where rows were not updated.
// Rows are kept as they came over the wire (WireOptions), decoded; sums of held-back gradients go over it
// like any gradient, through its error feedback where it has one. A server that started anew, or whose tables
// were loaded from a checkpoint, is noticed by its answers' generation: no older copy serves a pull that
// asked it.

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "tandem/v1/parameter_server.pb.h"

namespace tandem::ps {

namespace v1 = ::tandem::v1;

struct CacheOptions {
  size_t bytes = 0;        // of rows, held gradients, index and counters; 0: no cache
  uint64_t max_age = 100;  // in updates of the table (one for each push of each worker), < 2^31
  uint32_t recheck = 0;    // steps of this worker for which a confirmed copy is used unasked; 0: asks always
  // Gradients of a cached row are added up here until `push_bound` pushes of it came together, the row leaves
  // the cache or Client::Flush; then they go as one, with the learning rate factor of the push that takes
  // them along. 1: every gradient goes at once.
  uint32_t push_bound = 1;
  // Copies follow this worker's own gradients by plain SGD with the table's learning rate until their rows
  // come anew.
  bool local_update = false;
};

// OK, or InvalidArgument naming table, option and what is allowed. SYNC tables have no cache: their rows are
// bit-identical however many workers and servers there are, and every row that is pulled is then updated. GBA
// tables leave out pushes older than their staleness, so max_age must be below it, and collect gradients
// themselves: recheck must be 0, push_bound 1.
absl::Status ValidateCacheOptions(const v1::TableConfig& table, const CacheOptions& options);

// Of one table's cache, since it was set. Rows of read-only and pooled pulls, which go around it, are not in.
struct CacheStatistics {
  uint64_t lookups = 0;    // rows pulled
  uint64_t unasked = 0;    // served without asking
  uint64_t unchanged = 0;  // asked for, served from the copy
  uint64_t refreshed = 0;  // had a copy, but a newer row came
  uint64_t missed = 0;     // had none
  uint64_t admitted = 0;   // rows that came to stay
  uint64_t refused = 0;    // rows not worth another's place
  uint64_t evicted = 0;
  uint64_t forgotten = 0;  // because their server's rows were replaced as a whole
  uint64_t rows = 0;       // now
  uint64_t bytes = 0;      // now, of `CacheOptions::bytes`
  uint64_t capacity = 0;   // rows
  // Of pulls, ids and rows without headers, and what they would be with eight bytes an id and every row.
  uint64_t request_bytes = 0;
  uint64_t answer_bytes = 0;
  uint64_t plain_request_bytes = 0;
  uint64_t plain_answer_bytes = 0;
  // How old served rows were: V - v in updates, 0 where the server had no newer one.
  double age_mean = 0;
  uint64_t age_max = 0;
  uint64_t held_gradients = 0;  // ever held back, of single rows and pushes
  uint64_t held_rows = 0;       // rows with held-back gradients now

  uint64_t hits() const { return unasked + unchanged; }
  // This and another worker's, or another table's.
  void Add(const CacheStatistics& other);
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_CLIENT_CACHE_CACHE_OPTIONS_H_
