// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/status.h"
#include "ps/client/check_gradients.h"
#include "ps/client/client_impl.h"
#include "ps/client/merge_into_cache.h"
#include "ps/client/push_encoder.h"
#include "ps/client/push_operation.h"
#include "ps/trace_kinds.h"
#include "rpc/wire/bulk_codec.h"

namespace tandem::ps {
namespace {

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

absl::Status CheckOccurrences(const PushPart& part, bool counted) {
  if (part.occurrences.empty()) return absl::OkStatus();
  if (part.occurrences.size() != part.ids.size() || part.pooling != v1::NONE) {
    return absl::InvalidArgumentError(absl::StrCat(
        "table '", part.table, "': there are ", part.occurrences.size(), " numbers of occurrences for ",
        part.ids.size(), part.pooling == v1::NONE ? " ids" : " ids in bags, which have none"));
  }
  if (!counted) return absl::OkStatus();
  const auto zero = std::find(part.occurrences.begin(), part.occurrences.end(), 0u);
  if (zero == part.occurrences.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("table '", part.table, "': id ",
                                                 part.ids[zero - part.occurrences.begin()],
                                                 " has 0 occurrences, must have at least 1"));
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

}  // namespace

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

std::shared_ptr<PushOperation> ClientImpl::PushOfStep(uint64_t step, std::vector<PushPart> parts,
                                                      const PushOptions& options, bool retryable,
                                                      PushDone done) {
  if (AnyOnGpu(parts)) {
    if (absl::Status fetched = FetchGradients(&parts); !fetched.ok()) {
      std::move(done)(Annotate(fetched, "nothing was pushed to any server"));
      return nullptr;
    }
  }
  {
    absl::MutexLock lock(&last_push_mutex_);
    last_step_ = std::max(last_step_, step);
    last_options_ = options;
  }
  TraceUntilDone<PushDone, absl::Status>(kTracePush, step, &done);
  return SendPush(step, std::move(parts), {.push = options, .retryable = retryable}, std::move(done));
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
    if (status.ok()) status = CheckOccurrences(part, table->counts_occurrences);
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
  absl::StatusOr<PushWindow::Slot> slot = Window()->Take(step, StartTimeout(), options_.go_on_waiting);
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
    resolved_parts.push_back({std::move(parts[p]), dims[p], tables[p].wire, std::move(tables[p].feedback),
                              sums, tables[p].counts_occurrences});
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

}  // namespace tandem::ps
