#include "ps/client/client.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "base/buffer_pool.h"
#include "base/status.h"
#include "ps/client/pull_call.h"
#include "ps/client/push_encoder.h"
#include "ps/partition/shard_map.h"
#include "ps/table.h"
#include "rpc/codec/bulk_codec.h"

namespace tandem::ps {
namespace {

std::string MethodName(absl::string_view method) {
  return absl::StrCat("/tandem.v1.ParameterServer/", method);
}

// Offsets must be a cut of the ids: checked here so that a slip in the caller is an error message, not a read
// past an array.
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

class ClientImpl : public Client {
 public:
  ClientImpl(std::vector<std::unique_ptr<rpc::Channel>> channels, ShardMap map, const ClientOptions& options)
      : options_(options),
        map_(std::move(map)),
        channels_(std::move(channels)),
        next_sequence_(channels_.size(), 1) {}

  int num_servers() const override { return static_cast<int>(channels_.size()); }

  absl::Status CreateTable(const v1::TableConfig& config) override {
    TANDEM_RETURN_IF_ERROR(ValidateTableConfig(config));
    v1::CreateTableRequest request;
    *request.mutable_config() = config;
    TANDEM_RETURN_IF_ERROR(
        CallAll<v1::CreateTableResponse>("CreateTable", request, options_.timeout, /*idempotent=*/true)
            .status());
    absl::MutexLock lock(&tables_mutex_);
    tables_[config.name()] = std::make_shared<const v1::TableConfig>(config);
    return absl::OkStatus();
  }

  absl::Status SetUpdateMode(const std::string& table, const v1::UpdateMode& mode) override {
    v1::SetUpdateModeRequest request;
    request.set_table(table);
    *request.mutable_update_mode() = mode;
    return CallAll<v1::SetUpdateModeResponse>("SetUpdateMode", request, options_.timeout, /*idempotent=*/true)
        .status();
  }

  absl::StatusOr<std::vector<std::vector<v1::TableInfo>>> ListTablesPerServer() override {
    TANDEM_ASSIGN_OR_RETURN(
        std::vector<v1::ListTablesResponse> answers,
        CallAll<v1::ListTablesResponse>("ListTables", v1::ListTablesRequest(), options_.timeout,
                                        /*idempotent=*/true));
    std::vector<std::vector<v1::TableInfo>> servers;
    for (v1::ListTablesResponse& answer : answers) {
      servers.emplace_back(answer.tables().begin(), answer.tables().end());
    }
    return servers;
  }

  absl::StatusOr<std::vector<v1::TableInfo>> ListTables() override;

  void PullAsync(uint64_t step, bool read_only, std::vector<PullPart> parts, PullDone done) override {
    std::vector<ResolvedPart> resolved;
    resolved.reserve(parts.size());
    for (PullPart& part : parts) {
      absl::StatusOr<std::shared_ptr<const v1::TableConfig>> table = FindTable(part.table);
      absl::Status status =
          table.ok() ? CheckBags(part.table, part.ids, part.pooling, part.offsets) : table.status();
      if (!status.ok()) {
        std::move(done)(std::move(status));
        return;
      }
      resolved.push_back({std::move(part), (*table)->dim()});
    }
    auto call = std::make_shared<PullCall>(map_, std::move(resolved), std::move(done));
    call->Start(channels_, options_.worker, step, read_only, options_.timeout);
  }

  void PushAsync(uint64_t step, std::vector<PushPart> parts, float learning_rate_factor,
                 PushDone done) override;

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

  absl::StatusOr<std::vector<std::string>> SaveCheckpoint(const std::string& directory) override {
    v1::SaveCheckpointRequest request;
    request.set_directory(directory);
    TANDEM_ASSIGN_OR_RETURN(
        std::vector<v1::SaveCheckpointResponse> answers,
        CallAll<v1::SaveCheckpointResponse>("SaveCheckpoint", request, options_.checkpoint_timeout,
                                            /*idempotent=*/false));
    std::vector<std::string> files;
    for (const v1::SaveCheckpointResponse& answer : answers) {
      files.insert(files.end(), answer.files().begin(), answer.files().end());
    }
    return files;
  }

  absl::Status LoadCheckpoint(const std::string& directory) override {
    v1::LoadCheckpointRequest request;
    request.set_directory(directory);
    return CallAll<v1::LoadCheckpointResponse>("LoadCheckpoint", request, options_.checkpoint_timeout,
                                               /*idempotent=*/false)
        .status();
  }

 private:
  struct DenseRows {
    std::vector<uint64_t> ids;
    std::vector<float> padded;  // [ids.size() x dim]: the last row may stick out past the table's elements
  };

  // The same request to all servers at once; all answers, or the first error with the server's name.
  template <typename Response>
  absl::StatusOr<std::vector<Response>> CallAll(absl::string_view method,
                                                const google::protobuf::MessageLite& request,
                                                absl::Duration timeout, bool idempotent) {
    const std::string name = MethodName(method);
    const Slice wire = Slice::FromString(request.SerializeAsString());
    std::vector<absl::StatusOr<Bytes>> answers(channels_.size(), Bytes());
    absl::BlockingCounter pending(static_cast<int>(channels_.size()));
    for (size_t s = 0; s < channels_.size(); ++s) {
      channels_[s]->CallAsync(name, Bytes(wire), {.timeout = timeout, .idempotent = idempotent},
                              [&answers, &pending, s](absl::StatusOr<Bytes> answer) {
                                answers[s] = std::move(answer);
                                pending.DecrementCount();
                              });
    }
    pending.Wait();  // each call ends by its own deadline
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

  absl::StatusOr<std::shared_ptr<const v1::TableConfig>> FindTable(const std::string& name) {
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
    TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<const v1::TableConfig> config, FindTable(name));
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
  const ShardMap map_;
  const std::vector<std::unique_ptr<rpc::Channel>> channels_;
  BufferPool buffers_;
  absl::Mutex tables_mutex_;
  absl::flat_hash_map<std::string, std::shared_ptr<const v1::TableConfig>> tables_
      ABSL_GUARDED_BY(tables_mutex_);
  absl::Mutex sequence_mutex_;
  std::vector<uint64_t> next_sequence_ ABSL_GUARDED_BY(sequence_mutex_);  // per server
};

absl::StatusOr<std::vector<v1::TableInfo>> ClientImpl::ListTables() {
  TANDEM_ASSIGN_OR_RETURN(std::vector<std::vector<v1::TableInfo>> servers, ListTablesPerServer());
  std::vector<v1::TableInfo> sums;
  for (const std::vector<v1::TableInfo>& server : servers) {
    for (const v1::TableInfo& info : server) {
      auto sum = std::find_if(sums.begin(), sums.end(), [&](const v1::TableInfo& seen) {
        return seen.config().name() == info.config().name();
      });
      if (sum == sums.end()) {
        sums.push_back(info);
        continue;
      }
      v1::TableStatistics& to = *sum->mutable_statistics();
      const v1::TableStatistics& from = info.statistics();
      auto pushes = [](const v1::TableStatistics& s) {
        double n = 0;
        for (uint64_t count : s.staleness_histogram()) n += static_cast<double>(count);
        return n;
      };
      const double n = pushes(to) + pushes(from);
      if (n > 0) {
        to.set_staleness_mean((to.staleness_mean() * pushes(to) + from.staleness_mean() * pushes(from)) / n);
      }
      to.set_staleness_max(std::max(to.staleness_max(), from.staleness_max()));
      while (to.staleness_histogram_size() < from.staleness_histogram_size()) to.add_staleness_histogram(0);
      for (int i = 0; i < from.staleness_histogram_size(); ++i) {
        to.set_staleness_histogram(i, to.staleness_histogram(i) + from.staleness_histogram(i));
      }
      to.set_rows(to.rows() + from.rows());
      to.set_bytes(to.bytes() + from.bytes());
      to.set_pulled_rows(to.pulled_rows() + from.pulled_rows());
      to.set_pushed_rows(to.pushed_rows() + from.pushed_rows());
      to.set_missing_rows(to.missing_rows() + from.missing_rows());
      to.set_refused_pushes(to.refused_pushes() + from.refused_pushes());
      to.set_version(std::max(to.version(), from.version()));
      to.set_bytes_per_row(to.rows() == 0 ? 0.0
                                          : static_cast<double>(to.bytes()) / static_cast<double>(to.rows()));
      to.set_admitted_rows(to.admitted_rows() + from.admitted_rows());
      to.set_refused_rows(to.refused_rows() + from.refused_rows());
      to.set_evicted_rows(to.evicted_rows() + from.evicted_rows());
      to.set_longest_pause_us(std::max(to.longest_pause_us(), from.longest_pause_us()));
    }
  }
  return sums;
}

void ClientImpl::PushAsync(uint64_t step, std::vector<PushPart> parts, float learning_rate_factor,
                           PushDone done) {
  std::vector<uint32_t> dims;
  std::vector<float> norms;
  bool clipped = false;
  for (const PushPart& part : parts) {
    absl::StatusOr<std::shared_ptr<const v1::TableConfig>> table = FindTable(part.table);
    absl::Status status =
        table.ok() ? CheckBags(part.table, part.ids, part.pooling, part.offsets) : table.status();
    if (!status.ok()) {
      std::move(done)(std::move(status));
      return;
    }
    dims.push_back((*table)->dim());
    norms.push_back((*table)->optimizer().clip_global_norm());
    clipped = clipped || norms.back() > 0;
  }
  std::vector<std::vector<float>> scaled;
  if (clipped) ClipGlobalNorms(dims, norms, &parts, &scaled);
  std::vector<EncodedPush> requests = EncodePush(map_, parts, dims, &buffers_);

  // Shared by the answers; the last one tells the caller.
  struct Pending {
    std::atomic<size_t> outstanding;
    absl::Mutex mutex;
    absl::Status first_error ABSL_GUARDED_BY(mutex);
    PushDone done;
  };
  auto pending = std::make_shared<Pending>();
  pending->outstanding.store(channels_.size(), std::memory_order_relaxed);
  pending->done = std::move(done);
  std::vector<uint64_t> sequence(channels_.size());
  {
    absl::MutexLock lock(&sequence_mutex_);
    for (size_t s = 0; s < channels_.size(); ++s) sequence[s] = next_sequence_[s]++;
  }
  for (size_t s = 0; s < channels_.size(); ++s) {
    v1::PushRequest& header = requests[s].header;
    header.set_worker(options_.worker);
    header.set_epoch(options_.epoch);
    header.set_sequence(sequence[s]);
    header.set_step(step);
    header.set_learning_rate_factor(learning_rate_factor);
    // Fenced by its sequence number, a push may be sent again without harm.
    channels_[s]->CallAsync(MethodName("Push"), rpc::EncodeBulk(header, std::move(requests[s].payload)),
                            {.timeout = options_.timeout, .idempotent = true},
                            [pending, s, target = channels_[s]->target()](absl::StatusOr<Bytes> answer) {
                              if (!answer.ok()) {
                                absl::MutexLock lock(&pending->mutex);
                                if (pending->first_error.ok()) {
                                  pending->first_error = Annotate(
                                      answer.status(), absl::StrCat("push to server ", s, " (", target, ")"));
                                }
                              }
                              if (pending->outstanding.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
                              absl::Status result;
                              {
                                absl::MutexLock lock(&pending->mutex);
                                result = pending->first_error;
                              }
                              std::move(pending->done)(std::move(result));
                            });
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(std::vector<std::unique_ptr<rpc::Channel>> channels,
                                                        const ClientOptions& options) {
  if (channels.empty()) return absl::InvalidArgumentError("a client needs at least one parameter server");
  ShardMap map = ShardMap::Even(1, 1);
  for (size_t s = 0; s < channels.size(); ++s) {
    v1::ServerInfo info;
    const std::string who = absl::StrCat("server ", s, " (", channels[s]->target(), ")");
    if (absl::Status asked =
            rpc::CallProto(*channels[s], MethodName("GetServerInfo"), v1::GetServerInfoRequest(), &info,
                           {.timeout = options.timeout, .idempotent = true});
        !asked.ok()) {
      return Annotate(asked, who);
    }
    if (info.index() != s || info.num_servers() != channels.size()) {
      return absl::FailedPreconditionError(
          absl::StrCat(who, " says it is server ", info.index(), " of ", info.num_servers(), ", expected ", s,
                       " of ", channels.size(), "; are the addresses those of one job, in order?"));
    }
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
  return std::make_unique<ClientImpl>(std::move(channels), std::move(map), options);
}

absl::StatusOr<PullVersions> Client::Pull(uint64_t step, bool read_only, std::vector<PullPart> parts) {
  absl::Notification finished;
  absl::StatusOr<PullVersions> result;
  PullAsync(step, read_only, std::move(parts), [&](absl::StatusOr<PullVersions> versions) {
    result = std::move(versions);
    finished.Notify();
  });
  finished.WaitForNotification();  // the calls end by their own deadlines
  return result;
}

absl::Status Client::Push(uint64_t step, std::vector<PushPart> parts, float learning_rate_factor) {
  absl::Notification finished;
  absl::Status result;
  PushAsync(step, std::move(parts), learning_rate_factor, [&](absl::Status status) {
    result = std::move(status);
    finished.Notify();
  });
  finished.WaitForNotification();
  return result;
}

}  // namespace tandem::ps
