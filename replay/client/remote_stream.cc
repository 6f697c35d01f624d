// SPDX-License-Identifier: Apache-2.0
#include "replay/client/remote_stream.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "replay/client/may_repeat.h"
#include "replay/client/remote_replay.h"
#include "replay/wire/messages.h"
#include "rpc/wire/bulk_codec.h"

namespace tandem::replay {
namespace {

constexpr char kInsert[] = "/tandem.v1.Replay/Insert";
constexpr size_t kMaxItems = 1024;
constexpr size_t kMaxPayload = size_t{16} << 20;

}  // namespace

RemoteStream::RemoteStream(std::shared_ptr<rpc::Channel> channel, absl::string_view writer,
                           absl::Duration call_timeout, absl::Duration round_trip)
    : channel_(std::move(channel)),
      writer_(writer),
      call_timeout_(call_timeout),
      round_trip_(round_trip),
      incarnation_(RemoteReplay::NewIncarnation()) {}

absl::Status RemoteStream::Insert(const std::string& table, absl::Span<const NewItem> items,
                                  absl::Time deadline, size_t* inserted) {
  *inserted = 0;
  TableState& state = tables_[table];
  while (*inserted < items.size()) {
    const absl::Span<const NewItem> rest = items.subspan(*inserted);
    if (state.unresolved == 0) {
      state.unresolved = RequestItems(rest);
      ++state.sequence;
    }
    const size_t n = std::min(state.unresolved, rest.size());
    size_t taken = 0;
    const absl::Status status = Send(table, state, rest.first(n), deadline, &taken);
    if (MayRepeat(status)) return status;
    state.unresolved = 0;
    state.acknowledged += taken;
    *inserted += taken;
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

size_t RemoteStream::RequestItems(absl::Span<const NewItem> items) const {
  absl::flat_hash_set<uint64_t> keys;
  size_t bytes = 0, n = 0;
  // All items of a request have one layout.
  for (; n < std::min(items.size(), kMaxItems); ++n) {
    if (items[n].trajectory->layout != items[0].trajectory->layout) break;
    for (const auto& chunk : items[n].trajectory->chunks) {
      if (!delivered_.contains(chunk->key()) && keys.insert(chunk->key()).second) bytes += chunk->bytes();
    }
    if (n > 0 && bytes > kMaxPayload) break;
  }
  return n;
}

Bytes RemoteStream::Encode(const std::string& table, const TableState& state, absl::Span<const NewItem> items,
                           bool no_wait, std::vector<uint64_t>* sent) const {
  v1::ReplayInsertRequest request;
  request.set_writer(writer_);
  request.set_incarnation(incarnation_);
  request.set_sequence(state.sequence);
  request.set_table(table);
  request.set_acknowledged_items(state.acknowledged);
  request.set_no_wait(no_wait);
  request.set_report_refusal(true);
  const ItemLayout& layout = *items[0].trajectory->layout;
  ToProto(layout.steps->columns(), request.mutable_step_columns());
  for (size_t c = 0; c < layout.sources.size(); ++c) {
    v1::ReplayItemColumn& column = *request.add_item_columns();
    column.set_name(layout.items->column(c).name);
    column.set_source(static_cast<uint32_t>(layout.sources[c]));
  }
  Bytes payload;
  absl::flat_hash_map<uint64_t, uint32_t> indexes;
  uint64_t lowest = release_below_;
  for (const NewItem& item : items) {
    absl::InlinedVector<uint32_t, 4> own;
    for (const std::shared_ptr<const Chunk>& chunk : item.trajectory->chunks) {
      const auto [found, added] = indexes.emplace(chunk->key(), static_cast<uint32_t>(indexes.size()));
      own.push_back(found->second);
      lowest = std::min(lowest, chunk->key());
      if (!added) continue;
      request.add_chunk_keys(chunk->key());
      if (delivered_.contains(chunk->key())) continue;
      v1::ReplayChunk& message = *request.add_chunks();
      message.set_key(chunk->key());
      message.set_steps(chunk->steps());
      payload.Append(Slice(chunk, chunk->data(), chunk->bytes()));
      sent->push_back(chunk->key());
    }
    v1::ReplayItem& message = *request.add_items();
    if (item.priority) message.set_priority(*item.priority);
    message.set_min_version(item.trajectory->min_version);
    message.set_max_version(item.trajectory->max_version);
    message.set_ticket(item.ticket);
    SlicesToProto(*item.trajectory, own, message.mutable_slices(), message.mutable_slices_end());
  }
  request.set_release_below(lowest);
  return rpc::EncodeBulk(request, std::move(payload));
}

absl::Status RemoteStream::Send(const std::string& table, const TableState& state,
                                absl::Span<const NewItem> items, absl::Time deadline, size_t* inserted) {
  *inserted = 0;
  bool all_chunks = false;  // this call has sent all chunks, though the server may have some of them
  absl::Status reason;      // why the table took nothing so far
  while (true) {
    const absl::Duration left = deadline - MonotonicNow();
    const bool no_wait = left <= absl::ZeroDuration();
    std::vector<uint64_t> sent;
    Bytes request = Encode(table, state, items, no_wait, &sent);
    const absl::StatusOr<Bytes> wire = channel_->Call(
        kInsert, std::move(request),
        {.timeout = std::min(no_wait ? round_trip_ : left, call_timeout_), .idempotent = true});
    if (wire.ok()) {
      v1::ReplayInsertResponse response;
      const std::string flat = wire->Flatten();
      if (!response.ParseFromString(flat)) return absl::InternalError("the server's answer does not parse");
      if (response.server_incarnation() != server_) {
        delivered_.clear();
        server_ = response.server_incarnation();
      }
      delivered_.insert(sent.begin(), sent.end());
      absl::erase_if(delivered_, [this](uint64_t key) { return key < release_below_; });
      if (response.error_code() == 0) {
        *inserted = items.size();
        return absl::OkStatus();
      }
      *inserted = std::min<uint64_t>(response.inserted(), items.size());
      return absl::Status(static_cast<absl::StatusCode>(response.error_code()), response.error_message());
    }
    if (absl::IsFailedPrecondition(wire.status()) && !all_chunks) {
      // A server that has started again, or that has heard nothing of this writer for long, lacks chunks.
      delivered_.clear();
      all_chunks = true;
      continue;
    }
    // The server answers a moment before the call's deadline; the rest of the time is for another call.
    if (!absl::IsDeadlineExceeded(wire.status())) return wire.status();
    if (deadline - MonotonicNow() < kShortestCall) return reason.ok() ? wire.status() : reason;
    reason = wire.status();
  }
}

}  // namespace tandem::replay
