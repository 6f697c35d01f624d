// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_CLIENT_PULL_OPERATION_H_
#define TANDEM_PS_CLIENT_PULL_OPERATION_H_

// One PullAsync: sends a request to each server and decodes the rows of the responses into the
// caller's arrays.

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/buffer_pool.h"
#include "ps/client/cache/cached_part.h"
#include "ps/client/cache/read_cache.h"
#include "ps/client/chunk_decoder.h"
#include "ps/client/follower_reads.h"
#include "ps/client/parts.h"
#include "ps/client/payload_writer.h"
#include "ps/client/splitter.h"
#include "ps/dedupe.h"
#include "rpc/channel.h"

namespace tandem::ps {

// A part of a pull, and what the client knows about its table.
struct ResolvedPullPart {
  PullPart part;
  uint32_t dim = 0;
  WireOptions wire;
  // Set if the table has a cache that serves the pull. `part` then requests the remaining ids, and its `rows`
  // are those of the whole pull.
  std::shared_ptr<CachedPart> cached;
  // Set if a read cache has served a part of the pull, or is to keep its rows. `part` then requests
  // ReadPart::missing(), and its `rows` are those of the whole pull.
  std::shared_ptr<ReadPart> read;
};

// One pull. The calls under way share it; the last response destroys it.
//
// Unpooled rows are decoded into PullPart::rows as each server responds; servers own disjoint ids, so no two
// responses write the same row. Pooled rows are partial sums. They are added in the order of the servers
// after the last response, so that the bits do not depend on the order of arrival.
class PullOperation : public std::enable_shared_from_this<PullOperation> {
 public:
  // Uses `deduper` only during the call.
  PullOperation(const ShardMap& map, std::vector<ResolvedPullPart> parts, Deduper* deduper, PullDone done);

  struct Options {
    uint32_t worker = 0;
    uint64_t step = 0;
    bool read_only = false;
    absl::Duration timeout;
    absl::Duration max_lag;                          // ClientOptions::max_lag; 0: only primaries answer
    FollowerReadCounters* follower_reads = nullptr;  // with max_lag; must outlive the calls
  };
  // Sends the requests, which lie in memory of the channels or of `pool`. `done` runs when all servers have
  // responded or, with the first error, when all calls have ended.
  void Start(absl::Span<const std::unique_ptr<rpc::Channel>> channels, BufferPool* pool,
             const Options& options);

 private:
  // A position that receives a copy of a row that was requested once.
  struct Repeat {
    uint32_t from;
    uint32_t to;
  };

  // Makes part `p` request each of its ids once.
  void Dedupe(size_t p, const ShardMap& map, Deduper* deduper);
  // Makes the rows of part `p`, which a read cache has served in part, go to their places in the whole pull.
  void PlaceMissingRows(size_t p);
  // Returns the ids of part `p` that go to `server`.
  absl::Span<const uint64_t> Ids(size_t p, uint32_t server) const {
    return split_[p].empty() ? parts_[p].part.ids : absl::MakeConstSpan(split_[p][server].ids);
  }
  Bytes EncodeRequest(uint32_t server, const RequestRoute& route) const;
  // Returns the versions of the cached copies of the ids that go to `server`.
  std::vector<uint32_t> CopyVersions(size_t p, uint32_t server) const;
  // Returns a decoder for a long response; null if the rows can only be decoded after the whole response has
  // arrived.
  std::shared_ptr<ChunkDecoder> DecoderOf(uint32_t server);
  void OnResponse(uint32_t server, const std::string& target, ChunkDecoder* decoder,
                  absl::StatusOr<Bytes> response);
  // Checks a response and decodes its unpooled rows.
  absl::Status Accept(uint32_t server, const Bytes& response);
  // Checks the shape of a response and stores its versions.
  absl::Status CheckShape(uint32_t server, const v1::PullResponse& header, size_t payload_bytes);
  // Decodes the rows of a conditional slice. DataLoss: its shape differs from that in its header.
  absl::Status AcceptNewer(size_t p, uint32_t server, const v1::PullSliceResult& slice, BytesReader* reader);
  void AddPooledRows(size_t p);
  void CopyRepeats(size_t p);

  Options options_;
  std::vector<ResolvedPullPart> parts_;
  // [part][server]. Empty if there is one server, which gets the ids of the part as they are, and whose rows
  // are in the order of the ids.
  std::vector<std::vector<ServerIds>> split_;
  std::vector<std::vector<Repeat>> repeats_;  // [part]
  std::vector<std::vector<Bytes>> pooled_;    // [part][server] partial sums
  PullVersions versions_;                     // [part][server]; each server writes its own column
  PullDone done_;
  std::atomic<uint32_t> outstanding_{0};
  absl::Mutex mutex_;
  absl::Status first_error_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_CLIENT_PULL_OPERATION_H_
