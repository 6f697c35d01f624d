#ifndef TANDEM_PS_CLIENT_PULL_CALL_H_
#define TANDEM_PS_CLIENT_PULL_CALL_H_

// One PullAsync: a request to each server, rows put in place as the answers arrive.

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "ps/client/client.h"
#include "ps/client/splitter.h"
#include "rpc/channel.h"

namespace tandem::ps {

// A part with what the client knows about its table.
struct ResolvedPart {
  PullPart part;
  uint32_t dim = 0;
};

// Shared by the answers under way; destroys itself after the last one. Unpooled rows are written as each
// server answers (servers own disjoint ids, so no two write the same row); pooled rows are partial sums and
// are added in server order once all are there, so that the bits do not depend on who was faster.
class PullCall : public std::enable_shared_from_this<PullCall> {
 public:
  PullCall(const ShardMap& map, std::vector<ResolvedPart> parts, Client::PullDone done);

  // Sends the requests; `done` runs when all are answered or, with the first error, when all have ended.
  void Start(absl::Span<const std::unique_ptr<rpc::Channel>> channels, uint32_t worker, uint64_t step,
             bool read_only, absl::Duration timeout);

 private:
  void OnAnswer(uint32_t server, const std::string& target, absl::StatusOr<Bytes> answer);
  // Checks an answer's shape and writes its unpooled rows.
  absl::Status Accept(uint32_t server, const Bytes& answer);
  void AddPooledRows();

  std::vector<ResolvedPart> parts_;
  std::vector<std::vector<ServerIds>> split_;  // [part][server]; empty when there is one server
  std::vector<std::vector<Bytes>> pooled_;     // [part][server] partial sums
  PullVersions versions_;                      // [part][server]; each server writes its own column
  Client::PullDone done_;
  std::atomic<uint32_t> outstanding_{0};
  absl::Mutex mutex_;
  absl::Status first_error_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_CLIENT_PULL_CALL_H_
