// SPDX-License-Identifier: Apache-2.0
#include "ps/client/client.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <random>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/cleanup/cleanup.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "base/buffer_pool.h"
#include "base/clock.h"
#include "base/logging.h"
#include "base/status.h"
#include "ps/client/bytes_in_flight.h"
#include "ps/client/cache/cached_part.h"
#include "ps/client/cache/row_cache.h"
#include "ps/client/check_gradients.h"
#include "ps/client/merge_into_cache.h"
#include "ps/client/pull_operation.h"
#include "ps/client/push_encoder.h"
#include "ps/client/push_operation.h"
#include "ps/client/push_window.h"
#include "ps/client/row_staleness_totals.h"
#include "ps/client/splitter.h"
#include "ps/client/statistics.h"
#include "ps/optimizers/optimizer.h"
#include "ps/shard_map.h"
#include "ps/table.h"
#include "ps/trace_kinds.h"
#include "rpc/wire/bulk_codec.h"

namespace tandem::ps {
namespace {

std::string MethodName(absl::string_view method) {
  return absl::StrCat("/tandem.v1.ParameterServer/", method);
}

// Checked here so that wrong offsets give an error message and not a read past an array.
absl::Status CheckBags(const std::string& table, absl::Span<const uint64_t> ids, v1::Pooling pooling,
                       absl::Span<const uint32_t> offsets) {
  if (pooling == v1::NONE) {
    if (offsets.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("table '", table, "': bag offsets given, but no pooling"));
  }
  if (offsets.empty() || offsets.front() != 0 || offsets.back() != ids.size() ||
      !std::is_sorted(offsets.begin(), offsets.end())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "table '", table, "': bag offsets must ascend from 0 to the number of ids, ", ids.size()));
  }
  return absl::OkStatus();
}

// The states of rows travel in messages of about this size.
constexpr size_t kStateMessageBytes = size_t{4} << 20;

size_t RowsAMessage(size_t row_floats) {
  return std::max<size_t>(1, kStateMessageBytes / (row_floats * sizeof(float) + sizeof(uint64_t)));
}
bool AnyHasMore(absl::Span<const ServerIds> split, size_t first) {
  return std::any_of(split.begin(), split.end(),
                     [first](const ServerIds& server) { return first < server.ids.size(); });
}
// Returns at most `count` elements from `first` on.
template <typename T>
absl::Span<const T> Some(const std::vector<T>& all, size_t first, size_t count) {
  return first < all.size() ? absl::MakeConstSpan(all).subspan(first, count) : absl::Span<const T>();
}

absl::Status CheckSegments(const PushPart& part) {
  if (part.segments.empty()) return absl::OkStatus();
  if (part.segments.back() == part.ids.size() && part.segments.size() <= kMaxPushSegments &&
      std::is_sorted(part.segments.begin(), part.segments.end())) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("table '", part.table, "': the ends of ", part.segments.size(),
                   " segments must ascend to the number of ids, ", part.ids.size(), "; at most ",
                   kMaxPushSegments, " segments"));
}

// A server refuses messages with more slices, or with longer headers, but one server may get a longer header
// than another. With these limits every header is short enough.
absl::Status CheckSize(absl::Span<const PushPart> parts) {
  constexpr size_t kMaxParts = 1024;
  if (parts.size() > kMaxParts) {
    return absl::InvalidArgumentError(absl::StrCat("a push of ", parts.size(), " parts; at most ", kMaxParts,
                                                   " are allowed. Nothing was pushed to any server"));
  }
  size_t segments = 0;
  for (const PushPart& part : parts) segments += part.segments.size();
  if (segments <= kMaxPushSegments) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the parts of a push have ", segments,
                                                 " segments together; at most ", kMaxPushSegments,
                                                 " are allowed. Nothing was pushed to any server"));
}

class ClientImpl : public Client {
 public:
  // `push_window`: the smallest v1::ServerInfo.push_window of the servers.
  ClientImpl(std::vector<std::unique_ptr<rpc::Channel>> channels, ShardMap map, uint64_t push_window,
             const ClientOptions& options)
      : options_(options),
        pulls_in_flight_(options.max_bytes_in_flight),
        pushes_in_flight_(options.max_bytes_in_flight),
        push_window_(std::make_shared<PushWindow>(options.epoch, push_window)),
        map_(std::move(map)),
        channels_(std::move(channels)) {}
  ~ClientImpl() override {
    if (absl::Status pushed = PushDeferred(); !pushed.ok()) {
      LogError(absl::StrCat("gradients that were held back are lost: ", pushed.message()));
    }
  }

  int num_servers() const override { return static_cast<int>(channels_.size()); }

  absl::Status CreateTable(const v1::TableConfig& config) override {
    TANDEM_RETURN_IF_ERROR(ValidateTableConfig(config));
    v1::CreateTableRequest request;
    *request.mutable_config() = config;
    TANDEM_RETURN_IF_ERROR(
        CallAll<v1::CreateTableResponse>("CreateTable", request, options_.timeout, /*idempotent=*/true)
            .status());
    Remember(config);
    return absl::OkStatus();
  }

  absl::Status OpenTable(const std::string& name) override;

  absl::Status SetWire(const std::string& name, const WireOptions& options) override {
    if (absl::Status status = ValidateWireOptions(options); !status.ok()) {
      return Annotate(status, absl::StrCat("table '", name, "'"));
    }
    TANDEM_ASSIGN_OR_RETURN(const KnownTable known, FindTable(name));
    std::shared_ptr<ErrorFeedback> feedback;
    if (options.UsesErrorFeedback()) {
      feedback = std::make_shared<ErrorFeedback>(known.config->dim(), options.error_feedback_bytes);
    }
    // The rest of the entry may have changed in the meantime.
    absl::MutexLock lock(&tables_mutex_);
    KnownTable& table = tables_[name];
    table.wire = options;
    table.feedback.swap(feedback);
    return absl::OkStatus();
  }

  absl::StatusOr<ErrorFeedbackStatistics> FeedbackStatistics(const std::string& name) override {
    TANDEM_ASSIGN_OR_RETURN(const KnownTable table, FindTable(name));
    return table.feedback == nullptr ? ErrorFeedbackStatistics() : table.feedback->statistics();
  }

  absl::Status SetUpdateMode(const std::string& table, const v1::UpdateMode& mode) override {
    const absl::StatusOr<KnownTable> known = FindTable(table);
    if (known.ok() && known->cache != nullptr) {
      v1::TableConfig config = *known->config;
      *config.mutable_update_mode() = mode;
      TANDEM_RETURN_IF_ERROR(ValidateCacheOptions(config, known->cache->options()));
    }
    v1::SetUpdateModeRequest request;
    request.set_table(table);
    *request.mutable_update_mode() = mode;
    TANDEM_RETURN_IF_ERROR(CallAll<v1::SetUpdateModeResponse>("SetUpdateMode", request, options_.timeout,
                                                              /*idempotent=*/true)
                               .status());
    absl::MutexLock lock(&tables_mutex_);
    const auto found = tables_.find(table);
    if (found == tables_.end()) return absl::OkStatus();
    auto config = std::make_shared<v1::TableConfig>(*found->second.config);
    *config->mutable_update_mode() = mode;
    found->second.config = std::move(config);
    return absl::OkStatus();
  }

  absl::Status SetCache(const std::string& name, const CacheOptions& options) override {
    TANDEM_ASSIGN_OR_RETURN(const KnownTable known, FindTable(name));
    TANDEM_RETURN_IF_ERROR(ValidateCacheOptions(*known.config, options));
    if (known.cache != nullptr && known.cache->defers()) TANDEM_RETURN_IF_ERROR(PushDeferred());
    std::shared_ptr<RowCache> cache;
    if (options.bytes > 0) cache = std::make_shared<RowCache>(*known.config, options, &map_);
    absl::MutexLock lock(&tables_mutex_);
    tables_[name].cache = std::move(cache);
    return absl::OkStatus();
  }

  absl::StatusOr<CacheStatistics> CacheStatisticsOf(const std::string& name) override {
    TANDEM_ASSIGN_OR_RETURN(const KnownTable table, FindTable(name));
    return table.cache == nullptr ? CacheStatistics() : table.cache->Statistics();
  }

  absl::Status PushDeferred() override;

  absl::Status Flush(const std::string& table) override {
    v1::FlushRequest request;
    request.set_table(table);
    const absl::Status flushed =
        CallAll<v1::FlushResponse>("Flush", request, options_.timeout, /*idempotent=*/true).status();
    if (!absl::IsUnimplemented(flushed)) return flushed;
    // A server that does not have this method yet.
    v1::SetUpdateModeRequest old_request;
    old_request.set_table(table);
    return CallAll<v1::SetUpdateModeResponse>("SetUpdateMode", old_request, options_.timeout,
                                              /*idempotent=*/true)
        .status();
  }

  absl::StatusOr<std::vector<v1::ServerStatistics>> ListServers() override {
    return CallAll<v1::ServerStatistics>("GetServerStatistics", v1::GetServerStatisticsRequest(),
                                         options_.timeout, /*idempotent=*/true);
  }

  absl::StatusOr<std::vector<std::vector<v1::TableInfo>>> ListTablesPerServer(uint32_t hottest) override {
    v1::ListTablesRequest request;
    request.set_hottest(hottest);
    TANDEM_ASSIGN_OR_RETURN(std::vector<v1::ListTablesResponse> answers,
                            CallAll<v1::ListTablesResponse>("ListTables", request, options_.timeout,
                                                            /*idempotent=*/true));
    std::vector<std::vector<v1::TableInfo>> servers;
    for (v1::ListTablesResponse& response : answers) {
      servers.emplace_back(response.tables().begin(), response.tables().end());
    }
    return servers;
  }

  void PullAsync(uint64_t step, bool read_only, std::vector<PullPart> parts, PullDone done) override {
    TraceUntilDone<PullDone, absl::StatusOr<PullVersions>>(kTracePull, step, &done);
    std::vector<ResolvedPullPart> resolved;
    resolved.reserve(parts.size());
    uint64_t bytes = 0;
    for (PullPart& part : parts) {
      absl::StatusOr<KnownTable> table = FindTable(part.table);
      absl::Status status =
          table.ok() ? CheckBags(part.table, part.ids, part.pooling, part.offsets) : table.status();
      if (!status.ok()) {
        std::move(done)(std::move(status));
        return;
      }
      bytes += BytesOf(part, table->config->dim());
      std::shared_ptr<CachedPart> cached;
      if (table->cache != nullptr && !read_only && part.pooling == v1::NONE) {
        const bool sort = table->wire.pack_ids == PackIds::kAlways ||
                          (table->wire.pack_ids == PackIds::kAuto && !ReadsInPlace(*channels_[0]));
        cached = std::make_shared<CachedPart>(table->cache, part.ids, part.rows, sort);
        part.ids = cached->requested();
        part.repeats = false;
      }
      resolved.push_back({std::move(part), table->config->dim(), table->wire, std::move(cached)});
    }
    if (!Count(pulls_in_flight_, bytes, &done)) return;
    std::unique_ptr<Deduper> deduper = TakeDeduper();
    auto call = std::make_shared<PullOperation>(map_, std::move(resolved), deduper.get(), std::move(done));
    ReleaseDeduper(std::move(deduper));
    call->Start(channels_, &buffers_, options_.worker, step, read_only, options_.timeout);
  }

  void PushAsync(uint64_t step, std::vector<PushPart> parts, const PushOptions& options,
                 PushDone done) override {
    PushOfStep(step, std::move(parts), options, /*retryable=*/false, std::move(done));
  }

  std::shared_ptr<PushHandle> StartPush(uint64_t step, std::vector<PushPart> parts,
                                        const PushOptions& options, PushDone done) override {
    return PushOfStep(step, std::move(parts), options, /*retryable=*/true, std::move(done));
  }

  absl::StatusOr<std::vector<RowStalenessCounts>> RowStalenessStatistics(const std::string& name) override {
    TANDEM_ASSIGN_OR_RETURN(const KnownTable table, FindTable(name));
    return table.row_staleness->Get();
  }

  absl::Status ResetRowStalenessStatistics(const std::string& name) override {
    TANDEM_ASSIGN_OR_RETURN(const KnownTable table, FindTable(name));
    table.row_staleness->Reset();
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<FrequentRow>> FrequentlyUpdatedRows(const std::string& table,
                                                                 double min_row_staleness,
                                                                 size_t limit) override;
  absl::StatusOr<RowStates> ReadRowStates(const std::string& name, absl::Span<const uint64_t> ids) override;
  absl::Status WriteRowStates(const std::string& name, absl::Span<const uint64_t> ids,
                              const RowStates& states) override;
  absl::StatusOr<ScannedRows> ScanRows(const std::string& name, const ScanPosition& from,
                                       size_t max_rows) override;

  absl::Status PullDense(const std::string& table, uint64_t step, absl::Span<float> values) override {
    TANDEM_ASSIGN_OR_RETURN(DenseRows dense, FindDense(table, values.size()));
    TANDEM_RETURN_IF_ERROR(
        Pull(step, /*read_only=*/false, {{.table = table, .ids = dense.ids, .rows = dense.padded.data()}})
            .status());
    std::copy_n(dense.padded.begin(), values.size(), values.begin());
    return absl::OkStatus();
  }

  absl::Status PushDense(const std::string& table, uint64_t step,
                         absl::Span<const float> gradients) override {
    TANDEM_ASSIGN_OR_RETURN(DenseRows dense, FindDense(table, gradients.size()));
    std::copy(gradients.begin(), gradients.end(), dense.padded.begin());
    return Push(step, {{.table = table, .ids = dense.ids, .gradients = dense.padded.data()}});
  }

  absl::Status StartPushEpoch() override;

  absl::StatusOr<std::vector<v1::SavedFile>> SaveCheckpoint(const std::string& directory) override {
    TANDEM_RETURN_IF_ERROR(PushDeferred());
    v1::SaveCheckpointRequest request;
    request.set_directory(directory);
    TANDEM_ASSIGN_OR_RETURN(
        std::vector<v1::SaveCheckpointResponse> answers,
        CallAll<v1::SaveCheckpointResponse>("SaveCheckpoint", request, options_.checkpoint_timeout,
                                            /*idempotent=*/false));
    std::vector<v1::SavedFile> files;
    for (const v1::SaveCheckpointResponse& response : answers) {
      files.insert(files.end(), response.written().begin(), response.written().end());
      if (response.written_size() > 0) continue;
      for (const std::string& name : response.files()) files.emplace_back().set_name(name);
    }
    return files;
  }

  absl::Status LoadCheckpoint(const std::string& directory) override {
    v1::LoadCheckpointRequest request;
    request.set_directory(directory);
    const absl::Status loaded =
        CallAll<v1::LoadCheckpointResponse>("LoadCheckpoint", request, options_.checkpoint_timeout,
                                            /*idempotent=*/false)
            .status();
    // Some servers may have loaded the checkpoint even if others failed.
    for (const auto& [name, cache] : Caches()) cache->Clear();
    return loaded;
  }

 private:
  struct DenseRows {
    std::vector<uint64_t> ids;
    // [ids.size() x dim]: the last row may extend past the table's elements.
    std::vector<float> padded;
  };

  // Sends the same request to all servers at the same time. Returns all responses, or the first error with
  // the server's name.
  template <typename Response>
  absl::StatusOr<std::vector<Response>> CallAll(absl::string_view method,
                                                const google::protobuf::MessageLite& request,
                                                absl::Duration timeout, bool idempotent) {
    const Slice wire = Slice::FromString(request.SerializeAsString());
    return CallEach<Response>(method, std::vector<std::optional<Bytes>>(channels_.size(), Bytes(wire)),
                              timeout, idempotent);
  }

  // Sends each server its own request, at the same time. A server without one is not called; its response is
  // empty. Returns all responses, or the first error with the server's name.
  template <typename Response>
  absl::StatusOr<std::vector<Response>> CallEach(absl::string_view method,
                                                 std::vector<std::optional<Bytes>> requests,
                                                 absl::Duration timeout, bool idempotent) {
    const std::string name = MethodName(method);
    std::vector<absl::StatusOr<Bytes>> answers(channels_.size(), Bytes());
    absl::BlockingCounter pending(static_cast<int>(channels_.size()));
    for (size_t s = 0; s < channels_.size(); ++s) {
      if (!requests[s].has_value()) {
        pending.DecrementCount();
        continue;
      }
      channels_[s]->CallAsync(name, *std::move(requests[s]), {.timeout = timeout, .idempotent = idempotent},
                              [&answers, &pending, s](absl::StatusOr<Bytes> response) {
                                answers[s] = std::move(response);
                                pending.DecrementCount();
                              });
    }
    pending.Wait();  // each call ends at its own deadline
    std::vector<Response> responses(channels_.size());
    for (size_t s = 0; s < channels_.size(); ++s) {
      const std::string who = absl::StrCat("server ", s, " (", channels_[s]->target(), ")");
      if (!answers[s].ok()) return Annotate(answers[s].status(), who);
      if (!responses[s].ParseFromString(answers[s]->Flatten())) {
        return absl::DataLossError(absl::StrCat(who, ": the answer to ", method, " does not parse"));
      }
    }
    return responses;
  }

  struct KnownTable {
    std::shared_ptr<const v1::TableConfig> config;
    WireOptions wire;
    std::shared_ptr<ErrorFeedback> feedback;  // null: none
    std::shared_ptr<RowCache> cache;          // null: none
    std::shared_ptr<RowStalenessTotals> row_staleness = std::make_shared<RowStalenessTotals>();
    // True: server 0 has assigned the last push of the table to an update (PushOperation).
    std::shared_ptr<std::atomic<bool>> gets_position = std::make_shared<std::atomic<bool>>(false);
  };

  std::shared_ptr<PushOperation> PushOfStep(uint64_t step, std::vector<PushPart> parts,
                                            const PushOptions& options, bool retryable, PushDone done) {
    {
      absl::MutexLock lock(&last_push_mutex_);
      last_step_ = std::max(last_step_, step);
      last_options_ = options;
    }
    TraceUntilDone<PushDone, absl::Status>(kTracePush, step, &done);
    return SendPush(step, std::move(parts), {.push = options, .retryable = retryable}, std::move(done));
  }

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

  std::vector<std::pair<std::string, std::shared_ptr<RowCache>>> Caches() {
    std::vector<std::pair<std::string, std::shared_ptr<RowCache>>> caches;
    absl::MutexLock lock(&tables_mutex_);
    for (const auto& [name, table] : tables_) {
      if (table.cache != nullptr) caches.emplace_back(name, table.cache);
    }
    return caches;
  }

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
    absl::StatusOr<BytesInFlight::Share> share = counter.Take(bytes, StartTimeout());
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
  std::unique_ptr<Deduper> TakeDeduper() {
    absl::MutexLock lock(&dedupers_mutex_);
    if (dedupers_.empty()) return std::make_unique<Deduper>();
    std::unique_ptr<Deduper> deduper = std::move(dedupers_.back());
    dedupers_.pop_back();
    return deduper;
  }
  void ReleaseDeduper(std::unique_ptr<Deduper> deduper) {
    absl::MutexLock lock(&dedupers_mutex_);
    dedupers_.push_back(std::move(deduper));
  }

  void Remember(const v1::TableConfig& config) {
    absl::MutexLock lock(&tables_mutex_);
    KnownTable& table = tables_[config.name()];
    // The responses of server 0 will contain positions.
    if (config.update_mode().kind() == v1::UpdateMode::GBA) *table.gets_position = true;
    // A table that is created again keeps its wire options.
    table.config = std::make_shared<const v1::TableConfig>(config);
  }
  absl::StatusOr<KnownTable> FindTable(const std::string& name) {
    absl::MutexLock lock(&tables_mutex_);
    auto found = tables_.find(name);
    if (found != tables_.end()) return found->second;
    std::vector<std::string> known;
    for (const auto& [table, config] : tables_) known.push_back(table);
    std::sort(known.begin(), known.end());
    return absl::NotFoundError(absl::StrCat("this client knows no table '", name, "' (it has created: ",
                                            known.empty() ? "none" : absl::StrJoin(known, ", "),
                                            "); call CreateTable first"));
  }

  absl::StatusOr<DenseRows> FindDense(const std::string& name, size_t elements) {
    TANDEM_ASSIGN_OR_RETURN(const KnownTable table, FindTable(name));
    const std::shared_ptr<const v1::TableConfig>& config = table.config;
    if (config->kind() != v1::TableConfig::DENSE || config->elements() != elements) {
      return absl::InvalidArgumentError(absl::StrCat(
          "table '", name, "' is ", config->kind() == v1::TableConfig::DENSE ? "a dense" : "an embedding",
          " table of ", config->elements(), " elements; the array has ", elements));
    }
    DenseRows dense;
    dense.ids.resize((elements + config->dim() - 1) / config->dim());
    for (size_t i = 0; i < dense.ids.size(); ++i) dense.ids[i] = i;
    dense.padded.assign(dense.ids.size() * config->dim(), 0.0f);
    return dense;
  }

  const ClientOptions options_;
  // The members before channels_ outlive the channels' calls. Pulls and pushes are counted separately, since
  // a pull may wait on a server for a push of this worker.
  BytesInFlight pulls_in_flight_;
  BytesInFlight pushes_in_flight_;
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

std::vector<PushedSegments> ClientImpl::SegmentsOf(absl::Span<const PushPart> parts,
                                                   absl::Span<const KnownTable> tables) {
  std::vector<PushedSegments> segments;
  if (std::all_of(parts.begin(), parts.end(), [](const PushPart& part) { return part.segments.empty(); })) {
    return segments;
  }
  for (size_t p = 0; p < parts.size(); ++p) {
    PushedSegments& pushed = segments.emplace_back();
    pushed.totals = tables[p].row_staleness;
    pushed.count = parts[p].segments.size();
    for (size_t before = 0; before < p; ++before) {
      if (segments[before].totals == pushed.totals) pushed.first += segments[before].count;
    }
  }
  return segments;
}

absl::StatusOr<std::vector<FrequentRow>> ClientImpl::FrequentlyUpdatedRows(const std::string& table,
                                                                           double min_row_staleness,
                                                                           size_t limit) {
  TANDEM_RETURN_IF_ERROR(FindTable(table).status());
  v1::FrequentlyUpdatedRowsRequest request;
  request.set_table(table);
  request.set_min_row_staleness(min_row_staleness);
  request.set_limit(static_cast<uint32_t>(std::min<size_t>(limit, ~uint32_t{0})));
  TANDEM_ASSIGN_OR_RETURN(
      const std::vector<v1::FrequentlyUpdatedRowsResponse> responses,
      CallAll<v1::FrequentlyUpdatedRowsResponse>("FrequentlyUpdatedRows", request, options_.timeout,
                                                 /*idempotent=*/true));
  std::vector<FrequentRow> rows;
  for (const v1::FrequentlyUpdatedRowsResponse& response : responses) {
    for (const v1::FrequentRow& row : response.rows()) {
      rows.push_back({row.id(), row.row_staleness(), row.update_rate()});
    }
  }
  std::sort(rows.begin(), rows.end(), [](const FrequentRow& a, const FrequentRow& b) {
    return a.row_staleness != b.row_staleness ? a.row_staleness > b.row_staleness : a.id < b.id;
  });
  if (rows.size() > limit) rows.resize(limit);
  return rows;
}

absl::StatusOr<RowStates> ClientImpl::ReadRowStates(const std::string& name, absl::Span<const uint64_t> ids) {
  TANDEM_ASSIGN_OR_RETURN(const KnownTable table, FindTable(name));
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<Optimizer> optimizer,
                          MakeOptimizer(table.config->optimizer()));
  RowStates states;
  states.dim = table.config->dim();
  states.state_floats = static_cast<uint32_t>(optimizer->state_floats(states.dim));
  states.values.resize(ids.size() * states.row_floats());
  states.exists.resize(ids.size());
  std::vector<ServerIds> split;
  SplitByServer(map_, ids, {}, &split);
  const size_t some = RowsAMessage(states.row_floats());
  for (size_t first = 0; AnyHasMore(split, first); first += some) {
    std::vector<std::optional<Bytes>> requests(channels_.size());
    for (size_t s = 0; s < channels_.size(); ++s) {
      const absl::Span<const uint64_t> own = Some(split[s].ids, first, some);
      if (own.empty()) continue;
      v1::ReadRowStatesRequest request;
      request.set_table(name);
      request.mutable_ids()->Add(own.begin(), own.end());
      requests[s] = Bytes(request.SerializeAsString());
    }
    TANDEM_ASSIGN_OR_RETURN(const std::vector<v1::ReadRowStatesResponse> responses,
                            CallEach<v1::ReadRowStatesResponse>("ReadRowStates", std::move(requests),
                                                                options_.timeout, /*idempotent=*/true));
    for (size_t s = 0; s < channels_.size(); ++s) {
      const absl::Span<const uint32_t> positions = Some(split[s].positions, first, some);
      if (positions.empty()) continue;
      const v1::ReadRowStatesResponse& response = responses[s];
      const size_t floats = states.row_floats();
      if (response.dim() != states.dim || response.state_floats() != states.state_floats ||
          response.exists().size() != positions.size() ||
          static_cast<size_t>(response.values_size()) != positions.size() * floats) {
        return absl::DataLossError(absl::StrCat(
            "server ", s, " (", channels_[s]->target(), "): table '", name, "': ", positions.size(),
            " rows of ", states.dim, " + ", states.state_floats, " floats were asked for; the answer has ",
            response.values_size(), " values of rows of ", response.dim(), " + ", response.state_floats()));
      }
      for (size_t i = 0; i < positions.size(); ++i) {
        std::copy_n(response.values().data() + i * floats, floats, states.row(positions[i]));
        states.exists[positions[i]] = response.exists()[i] != 0;
      }
    }
  }
  // While the caller keeps the rows, the servers' ones and copies of them fall behind.
  if (table.cache != nullptr) table.cache->Forget(ids);
  return states;
}

absl::Status ClientImpl::WriteRowStates(const std::string& name, absl::Span<const uint64_t> ids,
                                        const RowStates& states) {
  TANDEM_ASSIGN_OR_RETURN(const KnownTable table, FindTable(name));
  const size_t floats = states.row_floats();
  if (states.values.size() != ids.size() * floats) {
    return absl::InvalidArgumentError(absl::StrCat("table '", name, "': ", states.values.size(),
                                                   " values for ", ids.size(), " rows of ", floats,
                                                   " floats"));
  }
  // After an error, too: some rows may have been written.
  const absl::Cleanup forget = [&] {
    if (table.cache != nullptr) table.cache->Forget(ids);
  };
  std::vector<ServerIds> split;
  SplitByServer(map_, ids, {}, &split);
  const size_t some = RowsAMessage(floats);
  for (size_t first = 0; AnyHasMore(split, first); first += some) {
    TANDEM_ASSIGN_OR_RETURN(const PushWindow::Slot slot, Window()->Take(/*step=*/0, options_.timeout));
    std::vector<std::optional<Bytes>> requests(channels_.size());
    for (uint32_t s = 0; s < channels_.size(); ++s) {
      const absl::Span<const uint32_t> positions = Some(split[s].positions, first, some);
      if (positions.empty()) continue;
      v1::WriteRowStatesRequest request;
      request.set_worker(options_.worker);
      request.set_epoch(slot.epoch());
      request.set_sequence(slot.sequence());
      request.set_table(name);
      request.set_dim(states.dim);
      request.set_state_floats(states.state_floats);
      const absl::Span<const uint64_t> own = Some(split[s].ids, first, some);
      request.mutable_ids()->Add(own.begin(), own.end());
      request.mutable_values()->Reserve(static_cast<int>(positions.size() * floats));
      for (const uint32_t position : positions) {
        request.mutable_values()->Add(states.row(position), states.row(position) + floats);
      }
      requests[s] = Bytes(request.SerializeAsString());
    }
    // The sequence makes it safe to send a request again.
    TANDEM_RETURN_IF_ERROR(CallEach<v1::WriteRowStatesResponse>("WriteRowStates", std::move(requests),
                                                                options_.timeout, /*idempotent=*/true)
                               .status());
  }
  return absl::OkStatus();
}

absl::StatusOr<ScannedRows> ClientImpl::ScanRows(const std::string& name, const ScanPosition& from,
                                                 size_t max_rows) {
  TANDEM_ASSIGN_OR_RETURN(const KnownTable table, FindTable(name));
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<Optimizer> optimizer,
                          MakeOptimizer(table.config->optimizer()));
  ScannedRows scanned;
  scanned.next = from;
  RowStates& states = scanned.states;
  states.dim = table.config->dim();
  states.state_floats = static_cast<uint32_t>(optimizer->state_floats(states.dim));
  const size_t wanted = std::clamp<size_t>(max_rows, 1, RowsAMessage(states.row_floats()));
  while (scanned.ids.size() < wanted && scanned.next.bucket < map_.num_buckets()) {
    const uint32_t s = map_.OwnerOfBucket(scanned.next.bucket);
    v1::ScanRowsRequest request;
    request.set_table(name);
    request.set_bucket(scanned.next.bucket);
    request.set_first_id(scanned.next.first_id);
    request.set_limit(static_cast<uint32_t>(wanted - scanned.ids.size()));
    std::vector<std::optional<Bytes>> requests(channels_.size());
    requests[s] = Bytes(request.SerializeAsString());
    TANDEM_ASSIGN_OR_RETURN(const std::vector<v1::ScanRowsResponse> responses,
                            CallEach<v1::ScanRowsResponse>("ScanRows", std::move(requests), options_.timeout,
                                                           /*idempotent=*/true));
    const v1::ScanRowsResponse& response = responses[s];
    const bool in_order = std::is_sorted(response.ids().begin(), response.ids().end()) &&
                          (response.ids().empty() || response.ids(0) >= scanned.next.first_id);
    if (response.dim() != states.dim || response.state_floats() != states.state_floats || !in_order ||
        static_cast<size_t>(response.values_size()) != response.ids_size() * states.row_floats() ||
        (response.more() && response.ids().empty())) {
      return absl::DataLossError(absl::StrCat(
          "server ", s, " (", channels_[s]->target(), "): table '", name, "': the answer to a scan of bucket ",
          scanned.next.bucket, " has ", response.ids_size(), " rows of ", response.dim(), " + ",
          response.state_floats(), " floats and ", response.values_size(), " values, expected rows of ",
          states.dim, " + ", states.state_floats, " in ascending order of id"));
    }
    scanned.ids.insert(scanned.ids.end(), response.ids().begin(), response.ids().end());
    states.values.insert(states.values.end(), response.values().begin(), response.values().end());
    if (response.more() && scanned.ids.back() != ~uint64_t{0}) {
      scanned.next.first_id = scanned.ids.back() + 1;
    } else {
      scanned.next = {.bucket = scanned.next.bucket + 1};
    }
  }
  states.exists.assign(scanned.ids.size(), 1);
  scanned.at_end = scanned.next.bucket >= map_.num_buckets();
  return scanned;
}

absl::Status ClientImpl::OpenTable(const std::string& name) {
  TANDEM_ASSIGN_OR_RETURN(const auto servers, ListTablesPerServer(0));
  const v1::TableConfig* config = nullptr;
  for (size_t s = 0; s < servers.size(); ++s) {
    const auto found = std::find_if(servers[s].begin(), servers[s].end(),
                                    [&](const v1::TableInfo& table) { return table.config().name() == name; });
    if (found == servers[s].end()) {
      std::vector<std::string> known;
      for (const v1::TableInfo& table : servers[s]) known.push_back(table.config().name());
      std::sort(known.begin(), known.end());
      return absl::NotFoundError(absl::StrCat("server ", s, " (", channels_[s]->target(), ") has no table '", name,
                                              "'; it has: ", known.empty() ? "none" : absl::StrJoin(known, ", ")));
    }
    if (config == nullptr) config = &found->config();
  }
  TANDEM_RETURN_IF_ERROR(Annotate(ValidateTableConfig(*config), "as server 0 has it"));
  Remember(*config);
  return absl::OkStatus();
}

absl::Status ClientImpl::StartPushEpoch() {
  // Servers may know different epochs of this worker. The second round gives all of them the same one, unless
  // another process of this worker interferes.
  constexpr int kRounds = 8;
  std::random_device random;
  v1::StartPushEpochRequest request;
  request.set_worker(options_.worker);
  for (int round = 0; round < kRounds; ++round) {
    // A repetition of this round's request, however late it arrives, must not start another epoch.
    request.set_token((uint64_t{random()} << 32 | random()) | 1);
    TANDEM_ASSIGN_OR_RETURN(const std::vector<v1::StartPushEpochResponse> answers,
                            CallAll<v1::StartPushEpochResponse>("StartPushEpoch", request, options_.timeout,
                                                                /*idempotent=*/true));
    uint64_t lowest = answers.front().epoch(), highest = lowest;
    for (const v1::StartPushEpochResponse& answer : answers) {
      lowest = std::min(lowest, answer.epoch());
      highest = std::max(highest, answer.epoch());
    }
    if (lowest == highest) {
      absl::MutexLock lock(&window_mutex_);
      push_window_ = std::make_shared<PushWindow>(highest, push_window_->size());
      return absl::OkStatus();
    }
    request.set_at_least(highest + 1);
  }
  return absl::AbortedError(absl::StrCat("worker ", options_.worker, " got no push epoch in ", kRounds,
                                         " rounds: another process of this worker starts at the same time; "
                                         "stop it"));
}

absl::Status ClientImpl::PushDeferred() {
  std::vector<MergedPart> taken;
  std::vector<std::string> names;
  for (const auto& [name, cache] : Caches()) {
    MergedPart part = TakeDeferred(*cache);
    if (part.gradients.ids.empty()) continue;
    taken.push_back(std::move(part));
    names.push_back(name);
  }
  if (taken.empty()) return absl::OkStatus();
  std::vector<PushPart> parts(taken.size());
  for (size_t i = 0; i < taken.size(); ++i) {
    parts[i].table = names[i];
    taken[i].PutInto(&parts[i]);
  }
  uint64_t step;
  PushOptions options;
  {
    absl::MutexLock lock(&last_push_mutex_);
    step = last_step_;
    options = last_options_;
  }
  absl::Notification finished;
  absl::Status result;
  SendPush(step, std::move(parts), {.push = options, .held_back = true}, [&](absl::Status status) {
    result = std::move(status);
    finished.Notify();
  });
  finished.WaitForNotification();  // the calls end at their own deadlines
  return result.ok() ? result : Annotate(result, "gradients held back by caches, which hold them no more");
}

std::shared_ptr<PushOperation> ClientImpl::SendPush(uint64_t step, std::vector<PushPart> parts,
                                                    const SendOptions& options, PushDone done) {
  const auto refuse = [&done](absl::Status status) {
    std::move(done)(std::move(status));
    return nullptr;
  };
  std::vector<KnownTable> tables;
  std::vector<uint32_t> dims;
  std::vector<float> norms;
  bool clipped = false;
  uint64_t bytes = 0;
  if (absl::Status status = CheckSize(parts); !status.ok()) return refuse(std::move(status));
  for (const PushPart& part : parts) {
    absl::StatusOr<KnownTable> table = FindTable(part.table);
    if (!table.ok()) return refuse(table.status());
    const uint32_t dim = table->config->dim();
    absl::Status status = CheckBags(part.table, part.ids, part.pooling, part.offsets);
    if (status.ok()) status = CheckSegments(part);
    // Before a cache or error feedback takes the gradients.
    if (status.ok()) status = CheckGradients(options_.worker, part, dim, GradientLimit(table->wire));
    if (!status.ok()) return refuse(std::move(status));
    bytes += BytesOf(part, dim);
    dims.push_back(dim);
    norms.push_back(table->config->optimizer().clip_global_norm());
    clipped = clipped || norms.back() > 0;
    tables.push_back(*std::move(table));
  }
  if (!Count(pushes_in_flight_, bytes, &done)) return nullptr;
  // After the bytes: a push that waits for them must not keep others out of the window.
  absl::StatusOr<PushWindow::Slot> slot = Window()->Take(step, StartTimeout());
  if (!slot.ok()) return refuse(slot.status());
  std::vector<std::vector<float>> scaled;
  std::vector<const float*> given;
  for (const PushPart& part : parts) given.push_back(part.gradients);
  if (clipped && !options.held_back) ClipGlobalNorms(dims, norms, &parts, &scaled);
  std::vector<MergedPart> merged(parts.size());
  size_t taken = 0;  // rows whose gradients have left a cache for this push
  for (size_t p = 0; p < parts.size() && !options.held_back; ++p) {
    if (tables[p].cache == nullptr || parts[p].pooling != v1::NONE) continue;
    MergeIntoCache(*tables[p].cache, options.push.learning_rate_factor, &parts[p], &merged[p]);
    taken += merged[p].gradients.ids.size();
  }
  for (size_t p = 0; p < parts.size(); ++p) {
    if (parts[p].gradients != given[p]) parts[p].owner = nullptr;  // they are in `scaled` or `merged` now
  }
  std::vector<PushedSegments> segments = SegmentsOf(parts, tables);
  std::vector<ResolvedPushPart> resolved_parts;
  resolved_parts.reserve(parts.size());
  std::vector<std::shared_ptr<std::atomic<bool>>> get_positions;
  for (const KnownTable& table : tables) get_positions.push_back(table.gets_position);
  for (size_t p = 0; p < parts.size(); ++p) {
    const bool sums = parts[p].gradients != given[p];
    resolved_parts.push_back(
        {std::move(parts[p]), dims[p], tables[p].wire, std::move(tables[p].feedback), sums});
  }
  std::unique_ptr<Deduper> deduper = TakeDeduper();
  PushEncoder encoder(map_, std::move(resolved_parts), deduper.get(), &buffers_);
  ReleaseDeduper(std::move(deduper));
  if (absl::Status status = encoder.CheckSums(options_.worker); !status.ok()) {
    if (taken == 0) return refuse(std::move(status));
    return refuse(absl::Status(
        status.code(), absl::StrCat(status.message(), "; caches gave this push the gradients of ", taken,
                                    " rows, which are lost, those of earlier pushes among them")));
  }
  const uint64_t epoch = slot->epoch(), sequence = slot->sequence();
  auto call = std::make_shared<PushOperation>(
      channels_, std::move(get_positions),
      PushOperation::Options{.timeout = options_.timeout, .step = step, .retryable = options.retryable},
      *std::move(slot), std::move(segments), std::move(done));
  for (uint32_t s = 0; s < channels_.size(); ++s) {
    rpc::Channel& channel = *channels_[s];
    const auto memory = [&](size_t bytes) { return RequestMemoryOf(channel, &buffers_, bytes); };
    const uint64_t traced = trace::Begin();
    EncodedPush request =
        encoder.Encode(s, {.memory = memory, .reads_in_place = ReadsInPlace(channel), .copies = &copies_});
    trace::End(kTraceEncodePush, traced, s);
    v1::PushRequest& header = request.header;
    header.set_worker(options_.worker);
    header.set_epoch(epoch);
    header.set_sequence(sequence);
    header.set_step(step);
    header.set_held_back(options.held_back);
    header.set_learning_rate_factor(options.push.learning_rate_factor);
    if (options.push.batch_share != 1.0f) header.set_batch_share(options.push.batch_share);
    call->Add(s, std::move(request));
  }
  call->Start();
  return call;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(std::vector<std::unique_ptr<rpc::Channel>> channels,
                                                        const ClientOptions& options) {
  if (channels.empty()) return absl::InvalidArgumentError("a client needs at least one parameter server");
  ShardMap map = ShardMap::Even(1, 1);
  uint64_t push_window = kDefaultPushWindow;
  for (size_t s = 0; s < channels.size(); ++s) {
    v1::ServerInfo info;
    const std::string who = absl::StrCat("server ", s, " (", channels[s]->target(), ")");
    if (absl::Status status =
            rpc::CallProto(*channels[s], MethodName("GetServerInfo"), v1::GetServerInfoRequest(), &info,
                           {.timeout = options.timeout, .idempotent = true});
        !status.ok()) {
      return Annotate(status, who);
    }
    if (info.index() != s || info.num_servers() != channels.size()) {
      return absl::FailedPreconditionError(
          absl::StrCat(who, " says it is server ", info.index(), " of ", info.num_servers(), ", expected ", s,
                       " of ", channels.size(), "; are the addresses those of one job, in order?"));
    }
    if (info.push_window() > 0) push_window = std::min(push_window, info.push_window());
    const auto owners = std::vector<uint32_t>(info.bucket_owner().begin(), info.bucket_owner().end());
    const bool sane =
        !owners.empty() && (owners.size() & (owners.size() - 1)) == 0 &&
        owners.size() == info.num_buckets() &&
        std::all_of(owners.begin(), owners.end(), [&](uint32_t o) { return o < channels.size(); });
    if (!sane)
      return absl::DataLossError(
          absl::StrCat(who, " sent a malformed shard map of ", owners.size(), " buckets"));
    ShardMap theirs(owners, static_cast<uint32_t>(channels.size()));
    if (s == 0) {
      map = theirs;
    } else if (!(theirs == map)) {
      return absl::FailedPreconditionError(absl::StrCat(who, " has another shard map than server 0"));
    }
  }
  return std::make_unique<ClientImpl>(std::move(channels), std::move(map), push_window, options);
}

absl::StatusOr<std::vector<v1::TableInfo>> Client::ListTables(uint32_t hottest) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::vector<v1::TableInfo>> servers,
                          ListTablesPerServer(hottest));
  return SumTables(servers, hottest);
}

absl::StatusOr<PullVersions> Client::Pull(uint64_t step, bool read_only, std::vector<PullPart> parts) {
  absl::Notification finished;
  absl::StatusOr<PullVersions> result;
  PrepareInlinePoll();
  PullAsync(step, read_only, std::move(parts), [&](absl::StatusOr<PullVersions> versions) {
    result = std::move(versions);
    finished.Notify();
  });
  InlinePoll([&] { return finished.HasBeenNotified(); });
  finished.WaitForNotification();  // the calls end at their own deadlines
  return result;
}

absl::Status Client::Push(uint64_t step, std::vector<PushPart> parts, const PushOptions& options) {
  absl::Notification finished;
  absl::Status result;
  PrepareInlinePoll();
  PushAsync(step, std::move(parts), options, [&](absl::Status status) {
    result = std::move(status);
    finished.Notify();
  });
  InlinePoll([&] { return finished.HasBeenNotified(); });
  finished.WaitForNotification();
  return result;
}

}  // namespace tandem::ps
