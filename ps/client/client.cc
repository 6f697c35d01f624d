// SPDX-License-Identifier: Apache-2.0
#include "ps/client/client.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/logging.h"
#include "base/status.h"
#include "ps/client/cache/cached_part.h"
#include "ps/client/client_impl.h"
#include "ps/client/pull_operation.h"
#include "ps/client/statistics.h"
#include "ps/shard_map.h"
#include "ps/trace_kinds.h"
#include "rpc/wire/bulk_codec.h"

namespace tandem::ps {

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

ClientImpl::ClientImpl(std::vector<std::unique_ptr<rpc::Channel>> channels, ShardMap map,
                       uint64_t push_window, const ClientOptions& options)
    : options_(options),
      pulls_in_flight_(options.max_bytes_in_flight),
      pushes_in_flight_(options.max_bytes_in_flight),
      gpu_copier_({.pinned_bytes = options.pinned_bytes,
                   .go_on_waiting = options.go_on_waiting,
                   .cuda = options.cuda}),
      push_window_(std::make_shared<PushWindow>(options.epoch, push_window)),
      map_(std::move(map)),
      channels_(std::move(channels)) {}

ClientImpl::~ClientImpl() {
  if (absl::Status pushed = PushDeferred(); !pushed.ok()) {
    LogError(absl::StrCat("gradients that were held back are lost: ", pushed.message()));
  }
}

void ClientImpl::PullAsync(uint64_t step, bool read_only, std::vector<PullPart> parts, PullDone done) {
  TraceUntilDone<PullDone, absl::StatusOr<PullVersions>>(kTracePull, step, &done);
  std::shared_ptr<GpuCopier::Rows> on_gpus;
  absl::Time deadline = absl::InfiniteFuture();
  if (AnyOnGpu(parts)) {
    absl::StatusOr<std::shared_ptr<GpuCopier::Rows>> staged = StageRows(&parts);
    if (!staged.ok()) {
      std::move(done)(staged.status());
      return;
    }
    on_gpus = *std::move(staged);
    deadline = MonotonicNow() + options_.timeout;
  }
  std::vector<ResolvedPullPart> resolved;
  resolved.reserve(parts.size());
  uint64_t bytes = 0;
  bool asks = false;  // whether a row must be requested
  for (PullPart& part : parts) {
    absl::StatusOr<KnownTable> table = FindTable(part.table);
    absl::Status status =
        table.ok() ? CheckBags(part.table, part.ids, part.pooling, part.offsets) : table.status();
    if (!status.ok()) {
      std::move(done)(std::move(status));
      return;
    }
    std::shared_ptr<ReadPart> read;
    if (table->read_cache != nullptr && read_only && part.pooling == v1::NONE) {
      read = std::make_shared<ReadPart>(table->read_cache, part.ids, part.rows);
      part.ids = read->missing();
    }
    asks = asks || read == nullptr || !part.ids.empty();
    bytes += BytesOf(part, table->config->dim());
    std::shared_ptr<CachedPart> cached;
    if (table->cache != nullptr && !read_only && part.pooling == v1::NONE) {
      const bool sort = table->wire.pack_ids == PackIds::kAlways ||
                        (table->wire.pack_ids == PackIds::kAuto && !ReadsInPlace(*channels_[0]));
      cached = std::make_shared<CachedPart>(table->cache, part.ids, part.rows, sort);
      part.ids = cached->requested();
      part.repeats = false;
    }
    resolved.push_back(
        {std::move(part), table->config->dim(), table->wire, std::move(cached), std::move(read)});
  }
  if (!asks && !resolved.empty()) {
    for (const ResolvedPullPart& part : resolved) part.read->FinishUnasked();
    if (on_gpus != nullptr) done = CopyRowsThen(std::move(on_gpus), deadline, std::move(done));
    std::move(done)(PullVersions(resolved.size(), std::vector<uint64_t>(channels_.size(), 0)));
    return;
  }
  if (!Count(pulls_in_flight_, bytes, &done)) return;
  if (on_gpus != nullptr) done = CopyRowsThen(std::move(on_gpus), deadline, std::move(done));
  std::unique_ptr<Deduper> deduper = TakeDeduper();
  auto call = std::make_shared<PullOperation>(map_, std::move(resolved), deduper.get(), std::move(done));
  ReleaseDeduper(std::move(deduper));
  call->Start(channels_, &buffers_,
              {.worker = options_.worker,
               .step = step,
               .read_only = read_only,
               .timeout = options_.timeout,
               .max_lag = read_only ? options_.max_lag : absl::ZeroDuration(),
               .follower_reads = &follower_reads_});
}

std::unique_ptr<Deduper> ClientImpl::TakeDeduper() {
  absl::MutexLock lock(&dedupers_mutex_);
  if (dedupers_.empty()) return std::make_unique<Deduper>();
  std::unique_ptr<Deduper> deduper = std::move(dedupers_.back());
  dedupers_.pop_back();
  return deduper;
}

void ClientImpl::ReleaseDeduper(std::unique_ptr<Deduper> deduper) {
  absl::MutexLock lock(&dedupers_mutex_);
  dedupers_.push_back(std::move(deduper));
}

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(std::vector<std::unique_ptr<rpc::Channel>> channels,
                                                        const ClientOptions& options) {
  if (channels.empty()) return absl::InvalidArgumentError("a client needs at least one parameter server");
  if (options.max_lag != absl::ZeroDuration() && options.max_lag < absl::Milliseconds(1)) {
    return absl::InvalidArgumentError(absl::StrCat("max_lag is ", absl::FormatDuration(options.max_lag),
                                                   "; it must be at least 1 ms, or 0 so that only primaries "
                                                   "answer"));
  }
  if (options.pinned_bytes < GpuCopier::kMinPinnedBytes ||
      options.pinned_bytes > GpuCopier::kMaxPinnedBytes) {
    return absl::InvalidArgumentError(absl::StrCat("pinned_bytes is ", options.pinned_bytes,
                                                   "; it must be from ", GpuCopier::kMinPinnedBytes,
                                                   " (64 KiB) to ", GpuCopier::kMaxPinnedBytes, " (16 GiB)"));
  }
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
  // A pull to a GPU ends on a thread of the client, which ends no wait for a response.
  const bool polls = !AnyOnGpu(parts);
  if (polls) PrepareInlinePoll();
  PullAsync(step, read_only, std::move(parts), [&](absl::StatusOr<PullVersions> versions) {
    result = std::move(versions);
    finished.Notify();
  });
  if (polls) InlinePoll([&] { return finished.HasBeenNotified(); });
  finished.WaitForNotification();  // the calls end at their own deadlines
  return result;
}

absl::Status Client::Push(uint64_t step, std::vector<PushPart> parts, const PushOptions& options) {
  absl::Notification finished;
  absl::Status result;
  // While a push waits for a GPU, responses of other calls must not wait for this thread.
  const bool polls = !AnyOnGpu(parts);
  if (polls) PrepareInlinePoll();
  PushAsync(step, std::move(parts), options, [&](absl::Status status) {
    result = std::move(status);
    finished.Notify();
  });
  if (polls) InlinePoll([&] { return finished.HasBeenNotified(); });
  finished.WaitForNotification();
  return result;
}

}  // namespace tandem::ps
