#ifndef TANDEM_PS_SERVER_REQUEST_PULL_RESPONSE_H_
#define TANDEM_PS_SERVER_REQUEST_PULL_RESPONSE_H_

// A pull's answer whose rows are read while it is sent, some hundred KiB at a time.

#include <cstddef>
#include <memory>
#include <vector>

#include "base/buffer_pool.h"
#include "base/bytes.h"
#include "ps/server/request/wire.h"
#include "ps/server/table/server_table.h"
#include "rpc/service.h"
#include "rpc/wire/response_source.h"

namespace tandem::ps {

// Holds the request, and the call so that it counts as unanswered.
class PullResponseSource : public rpc::ResponseSource {
 public:
  // Whether the answer's size is known and nothing can fail on the way: every row is sent, as it is, of
  // tables in memory. And whether it is worth it: what goes in one piece anyway is made at once, so that
  // short answers go together (rpc/wire/batch.h). And whether the first piece has room for the head, as any
  // other for a row.
  static bool Serves(const ParsedRequest& request);

  // A request that it Serves. `buffers` outlives it. Rows are those of now, or newer.
  PullResponseSource(ParsedRequest request, std::shared_ptr<rpc::ServerCall> call,
             TableCounters::Clock::time_point arrived, BufferPool* buffers);

  size_t size() const override { return head_.size() + request_.response_bytes; }
  Bytes Next(size_t limit) override;

 private:
  static constexpr size_t kMaxSliceHead = 64;  // bytes that the head has for a slice, about 50 at most
  static constexpr size_t kMaxSlices = kMinChunk / 2 / kMaxSliceHead;

  void Count() const;

  const ParsedRequest request_;
  const std::shared_ptr<rpc::ServerCall> call_;
  const TableCounters::Clock::time_point arrived_;
  BufferPool* const buffers_;
  std::vector<std::shared_ptr<TableStorage>> rows_;  // [slices]
  Bytes head_;
  bool begun_ = false;
  size_t slice_ = 0;  // of the next row
  size_t row_ = 0;    // in it
};

// Adds a pull to its tables' statistics; slice i's rows end at byte ends[i] of the answer.
void CountPull(const ParsedRequest& request, TableCounters::Clock::time_point arrived,
               absl::Span<const uint64_t> ends);

}  // namespace tandem::ps

#endif  // TANDEM_PS_SERVER_REQUEST_PULL_RESPONSE_H_
