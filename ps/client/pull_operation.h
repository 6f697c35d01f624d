#ifndef TANDEM_PS_CLIENT_PULL_OPERATION_H_
#define TANDEM_PS_CLIENT_PULL_OPERATION_H_

// One PullAsync: a request to each server, rows put in place as the answers arrive.

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/buffer_pool.h"
#include "ps/client/cache/cached_part.h"
#include "ps/client/chunk_decoder.h"
#include "ps/client/parts.h"
#include "ps/client/payload_writer.h"
#include "ps/client/splitter.h"
#include "ps/dedupe.h"
#include "rpc/channel.h"

namespace tandem::ps {

// A part with what the client knows about its table.
struct ResolvedPart {
  PullPart part;
  uint32_t dim = 0;
  WireOptions wire;
  // When the table has a cache that serves the pull: `part` asks for what is left, its `rows` are those of
  // the whole.
  std::shared_ptr<CachedPart> cached;
};

// Shared by the answers under way; destroys itself after the last one. Unpooled rows are decoded to their
// places as each server answers (servers own disjoint ids, so no two write the same row); pooled rows are
// partial sums and are added in server order once all are there, so that the bits do not depend on who was
// faster.
class PullOperation : public std::enable_shared_from_this<PullOperation> {
 public:
  // `deduper` is free again afterwards.
  PullOperation(const ShardMap& map, std::vector<ResolvedPart> parts, Deduper* deduper, PullDone done);

  // Sends the requests, put together in memory of the channels or else of `pool`; `done` runs when all are
  // answered or, with the first error, when all have ended.
  void Start(absl::Span<const std::unique_ptr<rpc::Channel>> channels, BufferPool* pool, uint32_t worker,
             uint64_t step, bool read_only, absl::Duration timeout);

 private:
  // A place that gets a copy of a row that was asked for once.
  struct Repeat {
    uint32_t from;
    uint32_t to;
  };

  // Asks for each id of the part once.
  void Dedupe(size_t p, const ShardMap& map, Deduper* deduper);
  absl::Span<const uint64_t> Ids(size_t p, uint32_t server) const {
    return split_[p].empty() ? parts_[p].part.ids : absl::MakeConstSpan(split_[p][server].ids);
  }
  Bytes EncodeRequest(uint32_t server, const RequestRoute& route, uint32_t worker, uint64_t step,
                      bool read_only) const;
  // Of the copies of the ids that go to `server`.
  std::vector<uint32_t> CopyVersions(size_t p, uint32_t server) const;
  // What puts the rows of a long answer in place while it arrives; none where rows must come all together.
  std::shared_ptr<ChunkDecoder> DecoderOf(uint32_t server);
  void OnResponse(uint32_t server, const std::string& target, ChunkDecoder* decoder,
                  absl::StatusOr<Bytes> response);
  // Checks an answer's shape and writes its unpooled rows.
  absl::Status Accept(uint32_t server, const Bytes& response);
  // The shape alone; takes the versions.
  absl::Status CheckShape(uint32_t server, const v1::PullResponse& header, size_t payload_bytes);
  // Reads a conditional slice's rows. DataLoss when it does not have the shape that its header says.
  absl::Status AcceptNewer(size_t p, uint32_t server, const v1::PullSliceResult& slice, BytesReader* reader);
  void AddPooledRows(size_t p);
  void CopyRepeats(size_t p);

  std::vector<ResolvedPart> parts_;
  // [part][server]; empty when there is one server, which is sent the part's ids as they are
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
