// SPDX-License-Identifier: Apache-2.0
#include "replay/wire/messages.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tandem::replay {
namespace {

v1::ReplaySelector SelectorToProto(const SelectorOptions& options) {
  v1::ReplaySelector message;
  message.set_kind(static_cast<v1::ReplaySelector::Kind>(options.kind));
  message.set_exponent(options.exponent);
  return message;
}

SelectorOptions SelectorFromProto(const v1::ReplaySelector& message) {
  return {.kind = static_cast<SelectorKind>(std::min<int>(std::max<int>(message.kind(), 0), 255)),
          .exponent = message.has_exponent() ? message.exponent() : SelectorOptions().exponent};
}

v1::ReplayStaleness StalenessToProto(const StalenessOptions& options) {
  v1::ReplayStaleness message;
  message.set_kind(static_cast<v1::ReplayStaleness::Kind>(options.kind));
  message.set_max_lag(options.max_lag);
  message.set_batch(options.batch);
  message.set_every(options.every);
  message.set_slow(static_cast<v1::ReplayStaleness::Slow>(options.slow));
  message.set_lease_seconds(absl::ToDoubleSeconds(options.lease));
  message.set_max_rollout_seconds(absl::ToDoubleSeconds(options.max_rollout));
  return message;
}

StalenessOptions StalenessFromProto(const v1::ReplayStaleness& message) {
  StalenessOptions options = {.kind = static_cast<StalenessKind>(std::clamp<int>(message.kind(), 0, 255)),
                              .max_lag = message.max_lag(),
                              .batch = message.batch(),
                              .every = message.every(),
                              .slow = static_cast<SlowRollouts>(std::clamp<int>(message.slow(), 0, 255))};
  // NaN becomes a negative duration, which CheckStaleness refuses.
  const auto seconds = [](double s) { return std::isnan(s) ? -absl::Seconds(1) : absl::Seconds(s); };
  if (message.lease_seconds() != 0) options.lease = seconds(message.lease_seconds());
  if (message.max_rollout_seconds() != 0) options.max_rollout = seconds(message.max_rollout_seconds());
  return options;
}

void FillStaleness(const StalenessInfo& info, v1::ReplayStalenessInfo* message) {
  message->set_commits(info.commits);
  if (info.head) {
    message->set_epoch(info.head->epoch);
    message->set_version(info.head->version);
    message->set_items_consumed(info.head->items_consumed);
  }
  message->mutable_lags()->Add(info.lags.begin(), info.lags.end());
  message->set_largest_lag(static_cast<uint64_t>(info.largest_lag));
  message->set_running_rollouts(info.running);
  message->set_admitted(info.tickets.admitted);
  message->set_expired(info.tickets.expired);
  message->set_returned(info.tickets.returned);
  message->set_refused_items(info.tickets.refused);
  message->set_waiting_admits(info.waiting_admits);
  message->set_admit_wait_seconds(info.admit_wait_seconds);
  message->set_oldest_actor(info.oldest_actor);
  message->set_oldest_seconds(absl::ToDoubleSeconds(info.oldest_age));
  message->set_why_not_admitted(info.why_not_admitted);
}

StalenessInfo StalenessInfoOf(const v1::ReplayStalenessInfo& message) {
  StalenessInfo info = {.largest_lag = static_cast<int64_t>(message.largest_lag()),
                        .commits = message.commits(),
                        .running = message.running_rollouts(),
                        .tickets = {.admitted = message.admitted(),
                                    .expired = message.expired(),
                                    .returned = message.returned(),
                                    .refused = message.refused_items()},
                        .waiting_admits = message.waiting_admits(),
                        .admit_wait_seconds = message.admit_wait_seconds(),
                        .oldest_actor = message.oldest_actor(),
                        .oldest_age = absl::Seconds(message.oldest_seconds()),
                        .why_not_admitted = message.why_not_admitted()};
  if (info.commits > 0) {
    info.head = CommittedVersion{
        .epoch = message.epoch(), .version = message.version(), .items_consumed = message.items_consumed()};
  }
  const auto lags = std::min(info.lags.size(), static_cast<size_t>(message.lags_size()));
  std::copy_n(message.lags().begin(), lags, info.lags.begin());
  return info;
}

absl::optional<double> Seconds(absl::Duration duration) {
  if (duration == absl::InfiniteDuration()) return absl::nullopt;
  return absl::ToDoubleSeconds(duration);
}

}  // namespace

v1::ReplayColumn ToProto(const Column& column) {
  v1::ReplayColumn message;
  message.set_name(column.name);
  message.set_dtype(static_cast<uint32_t>(column.dtype));
  message.mutable_shape()->Add(column.shape.begin(), column.shape.end());
  return message;
}

void ToProto(const std::vector<Column>& columns, ColumnMessages* out) {
  for (const Column& column : columns) *out->Add() = ToProto(column);
}

absl::StatusOr<std::vector<Column>> FromProto(const ColumnMessages& columns) {
  std::vector<Column> result;
  for (const v1::ReplayColumn& message : columns) {
    if (message.dtype() >= kNumDTypes) {
      return absl::InvalidArgumentError(absl::StrCat("column '", message.name(), "' has dtype ",
                                                     message.dtype(), "; there are ", kNumDTypes));
    }
    result.push_back({.name = message.name(),
                      .dtype = static_cast<DType>(message.dtype()),
                      .shape = {message.shape().begin(), message.shape().end()}});
  }
  return result;
}

bool Equal(const ColumnMessages& messages, const std::vector<Column>& columns) {
  return std::equal(messages.begin(), messages.end(), columns.begin(), columns.end(),
                    [](const v1::ReplayColumn& message, const Column& column) {
                      return message.name() == column.name &&
                             message.dtype() == static_cast<uint32_t>(column.dtype) &&
                             std::equal(message.shape().begin(), message.shape().end(), column.shape.begin(),
                                        column.shape.end());
                    });
}

v1::ReplayTableOptions ToProto(const TableOptions& options) {
  v1::ReplayTableOptions message;
  message.set_name(options.name);
  *message.mutable_sampler() = SelectorToProto(options.sampler);
  *message.mutable_remover() = SelectorToProto(options.remover);
  message.set_max_items(options.max_items);
  message.set_max_bytes(options.max_bytes);
  message.set_max_times_sampled(options.max_times_sampled);
  v1::ReplayLimit& limit = *message.mutable_limit();
  limit.set_samples_per_insert(options.limit.samples_per_insert);
  if (!std::isinf(options.limit.min_diff)) limit.set_min_diff(options.limit.min_diff);
  if (!std::isinf(options.limit.max_diff)) limit.set_max_diff(options.limit.max_diff);
  limit.set_min_size(options.limit.min_size);
  ToProto(options.columns, message.mutable_columns());
  message.set_seed(options.seed);
  if (options.staleness != StalenessOptions()) {
    *message.mutable_staleness() = StalenessToProto(options.staleness);
  }
  message.set_ttl_seconds(absl::ToDoubleSeconds(options.ttl));
  return message;
}

absl::StatusOr<TableOptions> FromProto(const v1::ReplayTableOptions& message) {
  TableOptions options = {
      .name = message.name(),
      .sampler = SelectorFromProto(message.sampler()),
      .remover = SelectorFromProto(message.remover()),
      .max_items = message.max_items(),
      .max_bytes = message.max_bytes(),
      .max_times_sampled = message.max_times_sampled(),
      .seed = message.seed(),
      .ttl = std::isnan(message.ttl_seconds()) ? -absl::Seconds(1) : absl::Seconds(message.ttl_seconds())};
  if (message.has_staleness()) options.staleness = StalenessFromProto(message.staleness());
  options.limit.samples_per_insert = message.limit().samples_per_insert();
  options.limit.min_size = message.limit().min_size();
  if (message.limit().has_min_diff()) options.limit.min_diff = message.limit().min_diff();
  if (message.limit().has_max_diff()) options.limit.max_diff = message.limit().max_diff();
  TANDEM_ASSIGN_OR_RETURN(options.columns, FromProto(message.columns()));
  return options;
}

v1::ReplayTableInfo ToProto(const TableInfo& info) {
  v1::ReplayTableInfo message;
  *message.mutable_options() = ToProto(info.options);
  ToProto(info.columns, message.mutable_columns());
  message.set_items(info.items);
  message.set_bytes(info.bytes);
  message.set_mass(info.mass);
  message.set_inserts(info.inserts);
  message.set_samples(info.samples);
  message.set_credited(info.credited);
  message.set_diff(info.diff);
  if (std::isfinite(info.lowest_diff)) message.set_lowest_diff(info.lowest_diff);
  if (std::isfinite(info.highest_diff)) message.set_highest_diff(info.highest_diff);
  message.set_removed_by_max_items(info.removals.by_max_items);
  message.set_removed_by_max_bytes(info.removals.by_max_bytes);
  message.set_consumed(info.removals.consumed);
  message.set_removed_by_reset(info.removals.by_reset);
  message.set_removed_stale(info.removals.stale);
  message.set_removed_by_ttl(info.removals.by_ttl);
  FillStaleness(info.staleness, message.mutable_staleness());
  message.set_total_inserts(info.total_inserts);
  message.set_total_samples(info.total_samples);
  message.set_priority_updates(info.priority_updates);
  message.set_missed_priority_updates(info.missed_priority_updates);
  message.set_waiting_inserts(info.waiting_inserts);
  message.set_waiting_samples(info.waiting_samples);
  message.set_insert_wait_seconds(info.insert_wait_seconds);
  message.set_sample_wait_seconds(info.sample_wait_seconds);
  message.set_last_inserter(info.last_inserter);
  message.set_last_sampler(info.last_sampler);
  if (const auto seconds = Seconds(info.since_insert)) message.set_seconds_since_insert(*seconds);
  if (const auto seconds = Seconds(info.since_sample)) message.set_seconds_since_sample(*seconds);
  message.set_why_no_insert(info.why_no_insert);
  message.set_why_no_sample(info.why_no_sample);
  return message;
}

absl::StatusOr<TableInfo> FromProto(const v1::ReplayTableInfo& message) {
  TableInfo info = {.items = message.items(),
                    .bytes = message.bytes(),
                    .mass = message.mass(),
                    .inserts = message.inserts(),
                    .samples = message.samples(),
                    .credited = message.credited(),
                    .diff = message.diff(),
                    .removals = {.by_max_items = message.removed_by_max_items(),
                                 .by_max_bytes = message.removed_by_max_bytes(),
                                 .consumed = message.consumed(),
                                 .by_reset = message.removed_by_reset(),
                                 .stale = message.removed_stale(),
                                 .by_ttl = message.removed_by_ttl()},
                    .total_inserts = message.total_inserts(),
                    .total_samples = message.total_samples(),
                    .priority_updates = message.priority_updates(),
                    .missed_priority_updates = message.missed_priority_updates(),
                    .waiting_inserts = message.waiting_inserts(),
                    .waiting_samples = message.waiting_samples(),
                    .insert_wait_seconds = message.insert_wait_seconds(),
                    .sample_wait_seconds = message.sample_wait_seconds(),
                    .last_inserter = message.last_inserter(),
                    .last_sampler = message.last_sampler(),
                    .why_no_insert = message.why_no_insert(),
                    .why_no_sample = message.why_no_sample(),
                    .staleness = StalenessInfoOf(message.staleness())};
  if (message.has_lowest_diff()) info.lowest_diff = message.lowest_diff();
  if (message.has_highest_diff()) info.highest_diff = message.highest_diff();
  if (message.has_seconds_since_insert()) info.since_insert = absl::Seconds(message.seconds_since_insert());
  if (message.has_seconds_since_sample()) info.since_sample = absl::Seconds(message.seconds_since_sample());
  TANDEM_ASSIGN_OR_RETURN(info.options, FromProto(message.options()));
  TANDEM_ASSIGN_OR_RETURN(info.columns, FromProto(message.columns()));
  return info;
}

void SlicesToProto(const Trajectory& trajectory, absl::Span<const uint32_t> chunk_index,
                   google::protobuf::RepeatedField<uint32_t>* slices,
                   google::protobuf::RepeatedField<uint32_t>* slices_end) {
  slices->Reserve(static_cast<int>(3 * trajectory.slices.size()));
  for (const ChunkSlice& slice : trajectory.slices) {
    slices->Add(chunk_index[slice.chunk]);
    slices->Add(slice.offset);
    slices->Add(slice.length);
  }
  slices_end->Add(trajectory.slices_end.begin(), trajectory.slices_end.end());
}

absl::Status SlicesFromProto(const google::protobuf::RepeatedField<uint32_t>& slices,
                             const google::protobuf::RepeatedField<uint32_t>& slices_end, size_t chunks,
                             Trajectory* trajectory, absl::InlinedVector<uint32_t, 4>* used) {
  constexpr int kMaxSlices = 65536;
  constexpr size_t kMaxChunks = 4096;
  constexpr size_t kFewChunks = 32;
  absl::flat_hash_map<uint32_t, size_t> places;  // of chunks in `used`, once there are more than a few
  if (slices.size() % 3 != 0 || slices.size() / 3 > kMaxSlices) {
    return absl::InvalidArgumentError(absl::StrCat("an item has ", slices.size(),
                                                   " numbers for its slices; each slice has 3, and at most ",
                                                   kMaxSlices, " slices are possible"));
  }
  trajectory->slices.reserve(static_cast<size_t>(slices.size()) / 3);
  for (int i = 0; i < slices.size(); i += 3) {
    const uint32_t chunk = slices[i];
    if (chunk >= chunks) {
      return absl::InvalidArgumentError(
          absl::StrCat("an item refers to chunk ", chunk, " of ", chunks, " chunk keys"));
    }
    // Items refer to few chunks, and mostly to the one that the slice before refers to.
    size_t index = used->size();
    if (used->size() <= kFewChunks) {
      const auto known = std::find(used->rbegin(), used->rend(), chunk);
      if (known != used->rend()) index = static_cast<size_t>(used->rend() - known) - 1;
    } else {
      for (size_t at = places.size(); at < used->size(); ++at) places.emplace((*used)[at], at);
      if (const auto known = places.find(chunk); known != places.end()) index = known->second;
    }
    if (index == used->size()) {
      if (used->size() == kMaxChunks) {
        return absl::InvalidArgumentError(
            absl::StrCat("an item refers to more than ", kMaxChunks, " chunks"));
      }
      used->push_back(chunk);
    }
    trajectory->slices.push_back(
        {.chunk = static_cast<uint32_t>(index), .offset = slices[i + 1], .length = slices[i + 2]});
  }
  trajectory->slices_end.assign(slices_end.begin(), slices_end.end());
  return absl::OkStatus();
}

}  // namespace tandem::replay
