// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_CLIENT_CLIENT_IMPL_H_
#define TANDEM_PS_CLIENT_CLIENT_IMPL_H_

// The class behind Client. Its methods are in several sources, by role:
//
//   - client.cc: connecting, pulls
//   - client_gpu.cc: parts whose rows or gradients are on GPUs
//   - client_tables.cc: tables, their options and statistics, checkpoints
//   - client_push.cc: pushes and push epochs
//   - client_row_states.cc: the states of rows, which move between servers and workers

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/buffer_pool.h"
#include "base/clock.h"
#include "base/status.h"
#include "ps/client/bytes_in_flight.h"
#include "ps/client/cache/read_cache.h"
#include "ps/client/cache/row_cache.h"
#include "ps/client/client.h"
#include "ps/client/error_feedback.h"
#include "ps/client/gpu/gpu_copier.h"
#include "ps/client/push_operation.h"
#include "ps/client/push_window.h"
#include "ps/client/row_staleness_totals.h"
#include "ps/dedupe.h"
#include "ps/shard_map.h"

namespace tandem::ps {

// Returns the full name of a method of the servers.
inline std::string MethodName(absl::string_view method) {
  return absl::StrCat("/tandem.v1.ParameterServer/", method);
}

// Returns whether an array of a PullPart or PushPart is on a GPU.
template <typename Part>
bool AnyOnGpu(const std::vector<Part>& parts) {
  return std::any_of(parts.begin(), parts.end(),
                     [](const Part& part) { return part.device != Device::Cpu(); });
}

// Returns InvalidArgument for bag offsets that do not fit the ids; they would lead to reads past an array.
absl::Status CheckBags(const std::string& table, absl::Span<const uint64_t> ids, v1::Pooling pooling,
                       absl::Span<const uint32_t> offsets);

class ClientImpl final : public Client {
 public:
  // `push_window`: the smallest v1::ServerInfo.push_window of the servers.
  ClientImpl(std::vector<std::unique_ptr<rpc::Channel>> channels, ShardMap map, uint64_t push_window,
             const ClientOptions& options);
  ~ClientImpl() override;

  FollowerReadStatistics FollowerReads() const override { return follower_reads_.Get(); }

  // client_tables.cc
  int num_servers() const override { return static_cast<int>(channels_.size()); }
  absl::Status CreateTable(const v1::TableConfig& config, uint64_t first_step) override;
  absl::Status DropTable(const std::string& name) override;
  absl::Status OpenTable(const std::string& name) override;
  absl::Status SetWire(const std::string& name, const WireOptions& options) override;
  bool CountsOccurrences(const std::string& name) override;
  absl::StatusOr<ErrorFeedbackStatistics> FeedbackStatistics(const std::string& name) override;
  absl::Status SetUpdateMode(const std::string& table, const v1::UpdateMode& mode) override;
  absl::Status SetCache(const std::string& name, const CacheOptions& options) override;
  absl::StatusOr<CacheStatistics> CacheStatisticsOf(const std::string& name) override;
  absl::Status SetReadCache(const std::string& name, const ReadCacheOptions& options) override;
  absl::Status ClearReadCache(const std::string& name) override;
  absl::StatusOr<ReadCacheStatistics> ReadCacheStatisticsOf(const std::string& name) override;
  absl::Status Flush(const std::string& table) override;
  absl::StatusOr<std::vector<v1::ServerStatistics>> ListServers() override;
  absl::StatusOr<std::vector<std::vector<v1::TableInfo>>> ListTablesPerServer(uint32_t hottest) override;
  absl::StatusOr<std::vector<RowStalenessCounts>> RowStalenessStatistics(const std::string& name) override;
  absl::Status ResetRowStalenessStatistics(const std::string& name) override;
  absl::Status PullDense(const std::string& table, uint64_t step, absl::Span<float> values) override;
  absl::Status PushDense(const std::string& table, uint64_t step, absl::Span<const float> gradients) override;
  absl::StatusOr<std::vector<v1::SavedFile>> SaveCheckpoint(const std::string& directory,
                                                            const SaveOptions& options) override;
  using Client::SaveCheckpoint;
  absl::Status BeginCheckpoint(const std::string& directory, const SaveOptions& options) override;
  void DropCached() override;
  absl::Status LoadCheckpoint(const std::string& directory) override;

  // client.cc
  void PullAsync(uint64_t step, bool read_only, std::vector<PullPart> parts, PullDone done) override;

  // client_gpu.cc
  // Replaces the rows of parts on GPUs by host memory. Returns what CopyRowsThen needs.
  absl::StatusOr<std::shared_ptr<GpuCopier::Rows>> StageRows(std::vector<PullPart>* parts);
  // Returns a callback that copies the rows of a successful pull to the GPUs before it runs `done`.
  PullDone CopyRowsThen(std::shared_ptr<GpuCopier::Rows> rows, absl::Time deadline, PullDone done);
  // Replaces the gradients of parts on GPUs by copies in host memory, which `owner` keeps. Blocks.
  absl::Status FetchGradients(std::vector<PushPart>* parts);

  // client_push.cc
  void PushAsync(uint64_t step, std::vector<PushPart> parts, const PushOptions& options,
                 PushDone done) override {
    PushOfStep(step, std::move(parts), options, /*retryable=*/false, std::move(done));
  }
  std::shared_ptr<PushHandle> StartPush(uint64_t step, std::vector<PushPart> parts,
                                        const PushOptions& options, PushDone done) override {
    return PushOfStep(step, std::move(parts), options, /*retryable=*/true, std::move(done));
  }
  absl::Status PushDeferred() override;
  absl::Status StartPushEpoch() override;

  // client_row_states.cc
  absl::StatusOr<std::vector<FrequentRow>> FrequentlyUpdatedRows(const std::string& table,
                                                                 double min_row_staleness,
                                                                 size_t limit) override;
  absl::StatusOr<RowStates> ReadRowStates(const std::string& name, absl::Span<const uint64_t> ids) override;
  using Client::WriteRowStates;
  absl::Status WriteRowStates(absl::Span<const TableRowStates> tables) override;
  absl::StatusOr<ScannedRows> ScanRows(const std::string& name, const ScanPosition& from,
                                       size_t max_rows) override;

 private:
  struct DenseRows {
    std::vector<uint64_t> ids;
    // [ids.size() x dim]: the last row may extend past the table's elements.
    std::vector<float> padded;
  };
  struct ServerRequest {
    size_t server = 0;
    Bytes bytes;
  };

  // Sends the same request to all servers at the same time. Returns all responses, or the first error with
  // the server's name.
  template <typename Response>
  absl::StatusOr<std::vector<Response>> CallAll(absl::string_view method,
                                                const google::protobuf::MessageLite& request,
                                                absl::Duration timeout, bool idempotent,
                                                std::stop_token cancel = {}) {
    const Slice wire = Slice::FromString(request.SerializeAsString());
    return CallEach<Response>(method, std::vector<std::optional<Bytes>>(channels_.size(), Bytes(wire)),
                              timeout, idempotent, std::move(cancel));
  }

  // Sends each server its own request, at the same time. A server without one is not called; its response is
  // empty. Returns all responses, or the first error with the server's name.
  template <typename Response>
  absl::StatusOr<std::vector<Response>> CallEach(absl::string_view method,
                                                 std::vector<std::optional<Bytes>> requests,
                                                 absl::Duration timeout, bool idempotent,
                                                 std::stop_token cancel = {}) {
    std::vector<ServerRequest> sent;
    for (size_t s = 0; s < channels_.size(); ++s) {
      if (requests[s].has_value()) sent.push_back({.server = s, .bytes = *std::move(requests[s])});
    }
    std::vector<size_t> servers;
    for (const ServerRequest& request : sent) servers.push_back(request.server);
    TANDEM_ASSIGN_OR_RETURN(
        std::vector<Response> answers,
        CallMany<Response>(method, std::move(sent), timeout, idempotent, std::move(cancel)));
    std::vector<Response> responses(channels_.size());
    for (size_t i = 0; i < servers.size(); ++i) responses[servers[i]] = std::move(answers[i]);
    return responses;
  }

  // Sends all requests at the same time, any number to a server. Returns their responses in order, or the
  // first error with the server's name.
  template <typename Response>
  absl::StatusOr<std::vector<Response>> CallMany(absl::string_view method,
                                                 std::vector<ServerRequest> requests, absl::Duration timeout,
                                                 bool idempotent, std::stop_token cancel = {}) {
    const std::string name = MethodName(method);
    std::vector<absl::StatusOr<Bytes>> answers(requests.size(), Bytes());
    absl::BlockingCounter pending(static_cast<int>(requests.size()));
    for (size_t i = 0; i < requests.size(); ++i) {
      channels_[requests[i].server]->CallAsync(
          name, std::move(requests[i].bytes),
          {.timeout = timeout, .idempotent = idempotent, .cancel = cancel},
          [&answers, &pending, i](absl::StatusOr<Bytes> response) {
            answers[i] = std::move(response);
            pending.DecrementCount();
          });
    }
    pending.Wait();  // each call ends at its own deadline
    std::vector<Response> responses(requests.size());
    for (size_t i = 0; i < requests.size(); ++i) {
      const size_t s = requests[i].server;
      const std::string who = absl::StrCat("server ", s, " (", channels_[s]->target(), ")");
      if (!answers[i].ok()) return Annotate(answers[i].status(), who);
      if (!responses[i].ParseFromString(answers[i]->Flatten())) {
        return absl::DataLossError(absl::StrCat(who, ": the answer to ", method, " does not parse"));
      }
    }
    return responses;
  }

  struct KnownTable {
    std::shared_ptr<const v1::TableConfig> config;
    bool counts_occurrences = false;  // the table's eviction does
    WireOptions wire;
    std::shared_ptr<ErrorFeedback> feedback;  // null: none
    std::shared_ptr<RowCache> cache;          // null: none
    std::shared_ptr<ReadCache> read_cache;    // null: none
    std::shared_ptr<RowStalenessTotals> row_staleness = std::make_shared<RowStalenessTotals>();
    // True: server 0 has assigned the last push of the table to an update (PushOperation).
    std::shared_ptr<std::atomic<bool>> gets_position = std::make_shared<std::atomic<bool>>(false);
  };

  std::shared_ptr<PushOperation> PushOfStep(uint64_t step, std::vector<PushPart> parts,
                                            const PushOptions& options, bool retryable, PushDone done);

  struct SendOptions {
    PushOptions push;
    // The gradients are deferred ones, of steps that were pushed before; the request says so.
    bool held_back = false;
    bool retryable = false;  // PushOperation::Options
  };
  // Sends a push. Returns null if it was not sent; `done` has then run with the error.
  std::shared_ptr<PushOperation> SendPush(uint64_t step, std::vector<PushPart> parts,
                                          const SendOptions& options, PushDone done);

  // Returns the segments of each part; empty if no part has any.
  static std::vector<PushedSegments> SegmentsOf(absl::Span<const PushPart> parts,
                                                absl::Span<const KnownTable> tables);

  std::vector<std::pair<std::string, std::shared_ptr<RowCache>>> Caches();
  std::vector<std::shared_ptr<ReadCache>> ReadCaches();

  void PrepareInlinePoll() override {
    if (channels_.size() == 1) channels_.front()->PrepareInlinePoll();
  }
  void InlinePoll(absl::FunctionRef<bool()> over) override {
    // If there are several servers, the channels receive in their own threads: all responses are needed at
    // the same time.
    if (channels_.size() == 1) channels_.front()->InlinePoll(over, MonotonicNow() + options_.timeout);
  }

  // Returns the bytes of ids and rows. `part` is a PullPart or a PushPart.
  template <typename Part>
  static uint64_t BytesOf(const Part& part, uint32_t dim) {
    const size_t rows = part.pooling == v1::NONE ? part.ids.size() : part.offsets.size() - 1;
    return part.ids.size() * sizeof(uint64_t) + rows * dim * sizeof(float);
  }
  // Counts a call of `bytes` as under way until its `done` runs, which it wraps for that purpose. Returns
  // false if the call does not fit; `done` has then run with the error.
  template <typename Result>
  bool Count(BytesInFlight& counter, uint64_t bytes, absl::AnyInvocable<void(Result) &&>* done) {
    absl::StatusOr<BytesInFlight::Share> share = counter.Take(bytes, StartTimeout(), options_.go_on_waiting);
    if (!share.ok()) {
      std::move (*done)(share.status());
      return false;
    }
    *done = [share = *std::move(share), inner = std::move(*done)](Result result) mutable {
      { const BytesInFlight::Share released = std::move(share); }
      std::move(inner)(std::move(result));
    };
    return true;
  }

  // Returns the window of the push epoch.
  std::shared_ptr<PushWindow> Window() {
    absl::MutexLock lock(&window_mutex_);
    return push_window_;
  }
  // How long a call may wait until it can start.
  absl::Duration StartTimeout() const {
    return options_.when_full == WhenFull::kWait ? options_.timeout : absl::ZeroDuration();
  }

  // A deduper keeps its allocated cells from call to call.
  std::unique_ptr<Deduper> TakeDeduper();
  void ReleaseDeduper(std::unique_ptr<Deduper> deduper);

  void Remember(const v1::TableConfig& config);
  // Changes what this client knows of a table. NotFound: it knows the table no longer.
  absl::Status ChangeTable(const std::string& name, absl::FunctionRef<void(KnownTable&)> change);
  absl::StatusOr<KnownTable> FindTable(const std::string& name);

  absl::StatusOr<DenseRows> FindDense(const std::string& name, size_t elements);

  const ClientOptions options_;
  // The members before channels_ outlive the channels' calls. Pulls and pushes are counted separately, since
  // a pull may wait on a server for a push of this worker.
  BytesInFlight pulls_in_flight_;
  BytesInFlight pushes_in_flight_;
  FollowerReadCounters follower_reads_;
  GpuCopier gpu_copier_;
  absl::Mutex window_mutex_;
  std::shared_ptr<PushWindow> push_window_ ABSL_GUARDED_BY(window_mutex_);
  const ShardMap map_;
  const std::vector<std::unique_ptr<rpc::Channel>> channels_;
  BufferPool buffers_;
  CopyChoice copies_{CopyChoice::kOfCopies};
  absl::Mutex tables_mutex_;
  absl::flat_hash_map<std::string, KnownTable> tables_ ABSL_GUARDED_BY(tables_mutex_);
  absl::Mutex dedupers_mutex_;
  std::vector<std::unique_ptr<Deduper>> dedupers_ ABSL_GUARDED_BY(dedupers_mutex_);
  absl::Mutex last_push_mutex_;
  uint64_t last_step_ ABSL_GUARDED_BY(last_push_mutex_) = 0;    // the largest pushed step
  PushOptions last_options_ ABSL_GUARDED_BY(last_push_mutex_);  // those of the last push
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_CLIENT_CLIENT_IMPL_H_
