// Pulls and pushes, from bytes to bytes.

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "ps/server/request/pooling.h"
#include "ps/server/request/pull_response.h"
#include "ps/server/request/response.h"
#include "ps/server/server_core.h"
#include "ps/trace_kinds.h"
#include "ps/wire/value_codec.h"
#include "rpc/wire/bulk_codec.h"

namespace tandem::ps {
namespace {

// Answers a push once all its parts are applied or safely kept.
struct PendingPush {
  std::shared_ptr<rpc::ServerCall> call;
  std::atomic<size_t> unsettled;
  v1::PushResponse response;  // but for the missing rows
  std::atomic<uint64_t> missing{0};

  absl::Mutex mutex;
  absl::Status error ABSL_GUARDED_BY(mutex);  // of a part: the first

  void Settle(const absl::StatusOr<uint64_t>& part_missing) {
    if (part_missing.ok()) {
      missing += *part_missing;
    } else {
      absl::MutexLock lock(&mutex);
      error.Update(part_missing.status());
    }
    if (--unsettled > 0) return;
    {
      absl::MutexLock lock(&mutex);
      if (!error.ok()) return call->Finish(error);
    }
    response.set_missing_rows(missing);
    call->Finish(rpc::internal::SerializeResponse(response));
  }
};

// Tells where a GBA table has put the push, slice by slice.
void AddPlaces(const ParsedRequest& request, absl::Span<const std::shared_ptr<ServerTable>> tables,
               absl::Span<const PushPlace> places, v1::PushResponse* response) {
  if (std::all_of(places.begin(), places.end(), [](const PushPlace& place) { return place.update == 0; }))
    return;
  for (const ParsedSlice& slice : request.slices) {
    const PushPlace& place = places[std::find(tables.begin(), tables.end(), slice.table) - tables.begin()];
    v1::PushPlace* out = response->add_places();
    out->set_update(place.update);
    out->set_stale(place.stale);
  }
}

absl::Status Stopped() { return absl::UnavailableError("the parameter server has stopped"); }

}  // namespace

WireContext ParameterServer::Impl::Wire() {
  return WireContext{.shard_map = shard_map_,
                     .server = options_.index,
                     .buffers = buffers_,
                     .max_message_bytes = options_.max_message_bytes,
                     .find = [this](absl::string_view name) { return FindTable(name); }};
}

absl::Status ParameterServer::Impl::CheckParkedBytes(uint64_t more) const {
  uint64_t held = parked_bytes_.load(std::memory_order_relaxed);
  for (const auto& table : AllTables()) held += table->waiting_bytes();
  if (held + more <= options_.max_parked_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "server ", options_.index, ": calls that wait for other workers hold ", held, " bytes and may hold ",
      options_.max_parked_bytes, ": a worker is far behind, or workers run too far ahead"));
}

absl::Time ParameterServer::Impl::ExpiryTime(const rpc::ServerCall& call) const {
  const absl::Time now = options_.clock->Now();
  const absl::Duration left = std::min(call.deadline() - now, options_.max_wait);
  // A moment before the caller gives up itself, so that it hears for whom it waited.
  return now + left - std::clamp(left / 10, absl::Milliseconds(5), absl::Seconds(1));
}

void ParameterServer::Impl::Dispatch(Waiters released) {
  if (released.empty()) return;
  for (size_t i = 0; i + 1 < released.size(); ++i) {
    if (!executor_.Post(released[i])) released[i]();
  }
  released.back()();
}

void ParameterServer::Impl::HandlePull(std::shared_ptr<rpc::ServerCall> call) {
  const TableCounters::Clock::time_point arrived = TableCounters::Clock::now();
  if (stopping_) return call->Finish(Stopped());
  absl::StatusOr<ParsedRequest> request = ParsePull(call->request(), Wire());
  if (!request.ok()) return call->Finish(request.status());
  auto pull = std::make_shared<PendingPull>(
      PendingPull{.call = std::move(call), .request = *std::move(request), .arrived = arrived});
  const uint64_t step = pull->request.step;
  const bool ready = std::all_of(pull->request.slices.begin(), pull->request.slices.end(),
                                 [step](const ParsedSlice& slice) { return slice.table->Ready(step); });
  if (ready) return RespondToPull(*pull);
  if (absl::Status status = CheckParkedBytes(pull->request.memory_bytes); !status.ok()) {
    return pull->call->Finish(status);
  }
  pull->ticket = deferred_.NewTicket();
  parked_bytes_ += pull->request.memory_bytes;
  deferred_.Defer(pull->ticket, ExpiryTime(*pull->call),
                  [this, pull](rpc::DeferredCalls::Reason reason) { ExpirePull(*pull, reason); });
  ContinuePull(pull);
}

void ParameterServer::Impl::ContinuePull(const std::shared_ptr<PendingPull>& pull) {
  const ParsedRequest& request = pull->request;
  for (; pull->next < request.slices.size(); ++pull->next) {
    ServerTable& table = *request.slices[pull->next].table;
    if (!table.ReadyOrWait(request.step, pull->ticket, [this, pull] { ContinuePull(pull); })) {
      // Given up between two tables: nobody else would take the waiter away.
      if (!deferred_.Contains(pull->ticket)) table.Forget(pull->ticket);
      return;
    }
  }
  if (!deferred_.Resume(pull->ticket)) return;
  parked_bytes_ -= request.memory_bytes;
  RespondToPull(*pull);
}

void ParameterServer::Impl::ExpirePull(const PendingPull& pull, rpc::DeferredCalls::Reason reason) {
  const ParsedRequest& request = pull.request;
  parked_bytes_ -= request.memory_bytes;
  if (reason == rpc::DeferredCalls::Reason::kStopped) {
    pull.call->Finish(absl::CancelledError("the parameter server is stopping"));
  } else {
    std::string why;
    for (const ParsedSlice& slice : request.slices) {
      if (slice.table->Ready(request.step)) continue;
      why = slice.table->WhyWaiting(request.step, request.worker);
      break;
    }
    if (why.empty())
      why = absl::StrCat("pull of step ", request.step, " by worker ", request.worker, " came too late");
    pull.call->Finish(absl::DeadlineExceededError(why));
  }
  for (const ParsedSlice& slice : request.slices) slice.table->Forget(pull.ticket);
}

void ParameterServer::Impl::RespondToPull(PendingPull& pull) {
  const ParsedRequest& request = pull.request;
  const trace::Span traced(kTraceLookup, static_cast<int64_t>(request.step), request.worker);
  std::shared_ptr<char> memory = pull.call->ResponseMemory(request.response_bytes);
  const bool in_place = memory != nullptr;  // who pulls reads it there
  if (!in_place && PullResponseSource::Serves(request)) {
    const std::shared_ptr<rpc::ServerCall> call = pull.call;
    return call->FinishInChunks(
        std::make_unique<PullResponseSource>(std::move(pull.request), call, pull.arrived, &buffers_));
  }
  if (memory == nullptr) memory = buffers_.Get(request.response_bytes);
  char* out = memory.get();
  v1::PullResponse header;
  absl::InlinedVector<uint64_t, 8> ends;
  for (const ParsedSlice& slice : request.slices) {
    const uint32_t dim = slice.table->dim();
    v1::PullSliceResult* result = header.add_slices();
    result->set_dim(dim);
    result->set_values(slice.values);
    // Seen before the rows are read: they hold at least the updates it counts.
    const ServerTable::View view = slice.table->Look();
    result->set_version(view.version);
    result->set_applied(view.applied);
    result->set_generation(view.generation);
    uint64_t rows = slice.rows();
    if (slice.conditional) {
      const absl::StatusOr<uint64_t> newer = WriteNewerRows(view, slice, !request.read_only, buffers_, out);
      if (!newer.ok()) return pull.call->Finish(newer.status());
      slice.table->counters().AddUnchangedRows(rows - *newer);
      slice.table->counters().AddUnaskedRows(slice.unasked_rows);
      rows = *newer;
      out += BitmapBytes(slice.ids.size());
    } else if (absl::Status status =
                   WriteRows(*view.storage, slice, !request.read_only, buffers_, in_place, out);
               !status.ok()) {
      return pull.call->Finish(status);
    }
    result->set_num_rows(rows);
    out += rows * RowBytes(slice.values, dim);
    ends.push_back(reinterpret_cast<const char*>(out) - memory.get());
    if (!request.read_only) slice.table->counters().AddPulledIds(slice.ids);
  }
  CountPull(request, pull.arrived, ends);
  const char* const data = memory.get();
  const size_t size = out - data;
  pull.call->Finish(rpc::EncodeBulk(header, Bytes(Slice(std::move(memory), data, size))));
}

void ParameterServer::Impl::HandlePush(std::shared_ptr<rpc::ServerCall> call,
                                       TableCounters::Clock::time_point arrived) {
  if (stopping_) return call->Finish(Stopped());
  if (!gate_.TryEnter()) return DeferPush(std::move(call), arrived);
  RunPush(call, arrived);
}

void ParameterServer::Impl::DeferPush(std::shared_ptr<rpc::ServerCall> call,
                                      TableCounters::Clock::time_point arrived) {
  const uint64_t bytes = call->request().size();
  if (absl::Status status = CheckParkedBytes(bytes); !status.ok()) return call->Finish(status);
  const uint64_t ticket = deferred_.NewTicket();
  parked_bytes_ += bytes;
  deferred_.Defer(ticket, ExpiryTime(*call), [this, call, bytes](rpc::DeferredCalls::Reason reason) {
    parked_bytes_ -= bytes;
    call->Finish(reason == rpc::DeferredCalls::Reason::kStopped
                     ? absl::CancelledError("the parameter server is stopping")
                     : absl::DeadlineExceededError(
                           absl::StrCat("server ", options_.index,
                                        ": the push waited for a checkpoint or a change of update mode")));
  });
  auto go_on = [this, call, ticket, bytes, arrived] {
    if (!deferred_.Resume(ticket)) return;
    parked_bytes_ -= bytes;
    HandlePush(call, arrived);
  };
  if (!gate_.EnterOrKeep(go_on)) return;
  if (!deferred_.Resume(ticket)) return gate_.Leave();
  parked_bytes_ -= bytes;
  RunPush(call, arrived);
}

void ParameterServer::Impl::RunPush(const std::shared_ptr<rpc::ServerCall>& call,
                                    TableCounters::Clock::time_point arrived) {
  Waiters released;
  const absl::Status status = [&]() -> absl::Status {
    const uint64_t traced = trace::Begin();
    TANDEM_ASSIGN_OR_RETURN(ParsedRequest parsed, ParsePush(call->request(), Wire()));
    trace::End(kTraceParsePush, traced);
    auto request = std::make_shared<const ParsedRequest>(std::move(parsed));
    std::vector<std::shared_ptr<ServerTable>> tables;
    std::vector<TablePush> parts = MakeParts(request, &tables);
    auto push = std::make_shared<PendingPush>();
    push->call = call;
    push->unsettled = parts.size();
    for (size_t i = 0; i < parts.size(); ++i) {
      // The table outlives the call: it is what calls.
      TableCounters* const counters = &tables[i]->counters();
      uint64_t bytes = 0;
      for (const ParsedSlice& slice : request->slices) {
        if (slice.table == tables[i]) bytes += slice.wire_bytes;
      }
      parts[i].settled = [push, counters, arrived, bytes](const absl::StatusOr<uint64_t>& missing) {
        counters->AddPushCall(arrived, bytes);
        push->Settle(missing);
      };
    }
    TANDEM_ASSIGN_OR_RETURN(const bool taken, Admit(*request, std::move(parts), tables, &push->response));
    if (!taken) {
      push->response.set_duplicate(true);
      call->Finish(rpc::internal::SerializeResponse(push->response));
      return absl::OkStatus();
    }
    for (const auto& table : tables) {
      Waiters more = table->Drain();
      std::move(more.begin(), more.end(), std::back_inserter(released));
    }
    return absl::OkStatus();
  }();
  gate_.Leave();
  if (!status.ok()) call->Finish(status);
  Dispatch(std::move(released));
}

absl::StatusOr<bool> ParameterServer::Impl::Admit(const ParsedRequest& request, std::vector<TablePush> parts,
                                                  absl::Span<const std::shared_ptr<ServerTable>> tables,
                                                  v1::PushResponse* response) {
  absl::MutexLock lock(&push_mutex_);
  const bool tells_places = options_.index == 0;
  std::vector<PushPlace> places;
  TANDEM_ASSIGN_OR_RETURN(const PushFence::Verdict verdict,
                          fences_.Check(request.worker, request.epoch, request.sequence));
  if (verdict == PushFence::Verdict::kDuplicate) {
    // The first answer may have been lost, and the other servers need the places that it told.
    for (const auto& table : tables) places.push_back(table->PlaceOf(request.worker, request.step));
    if (tells_places) AddPlaces(request, tables, places, response);
    return false;
  }
  bool ahead = false;
  for (const auto& table : tables) {
    TANDEM_RETURN_IF_ERROR(request.held_back ? table->CheckHeldBack(request.worker)
                                             : table->CheckPush(request.worker, request.step));
    ahead = ahead || (!request.held_back && table->IsAhead(request.step));
  }
  // A push that others wait for is always taken: it frees memory.
  if (ahead) TANDEM_RETURN_IF_ERROR(CheckParkedBytes(request.memory_bytes));
  fences_.Commit(request.worker, request.epoch, request.sequence);
  for (size_t i = 0; i < parts.size(); ++i) places.push_back(tables[i]->Assign(&parts[i]));
  if (tells_places) AddPlaces(request, tables, places, response);
  for (size_t i = 0; i < parts.size(); ++i) tables[i]->Enqueue(std::move(parts[i]));
  return true;
}

std::vector<TablePush> ParameterServer::Impl::MakeParts(const std::shared_ptr<const ParsedRequest>& request,
                                                        std::vector<std::shared_ptr<ServerTable>>* tables) {
  std::vector<std::vector<const ParsedSlice*>> groups;
  for (const ParsedSlice& slice : request->slices) {
    const auto found = std::find(tables->begin(), tables->end(), slice.table);
    if (found == tables->end()) {
      tables->push_back(slice.table);
      groups.push_back({&slice});
    } else {
      groups[found - tables->begin()].push_back(&slice);
    }
  }
  std::vector<TablePush> parts;
  std::vector<size_t> in_place;  // parts that lie in the request's memory
  uint64_t in_place_bytes = 0;
  for (const std::vector<const ParsedSlice*>& group : groups) {
    const ParsedSlice& first = *group.front();
    const uint32_t dim = first.table->dim();
    TablePush& part = parts.emplace_back();
    part.worker = request->worker;
    part.step = request->step;
    part.held_back = request->held_back;
    part.learning_rate_factor = request->learning_rate_factor;
    part.pulled_version = first.pulled_version;
    part.place = first.place;
    const bool factors = std::any_of(group.begin(), group.end(), [](const ParsedSlice* slice) {
      return slice->learning_rate_factor != 1.0f;
    });
    if (group.size() == 1 && first.pooling == v1::NONE && !factors) {
      part.ids = first.ids;
      part.gradients = first.gradients.data();
      // What the ids and gradients lie in, and no more: the request also holds its tables, and a table that
      // keeps this part would then hold itself.
      part.memory = std::make_shared<const std::pair<Bytes, std::vector<std::shared_ptr<char>>>>(
          request->payload, request->copies);
    } else {
      // Several slices of a table are one update, so that an id in two of them gets the sum of its gradients.
      size_t rows = 0;
      for (const ParsedSlice* slice : group) rows += slice->ids.size();
      std::shared_ptr<char> memory = buffers_.Get(rows * (sizeof(uint64_t) + (dim + 1) * sizeof(float)));
      auto* ids = reinterpret_cast<uint64_t*>(memory.get());
      auto* gradients = reinterpret_cast<float*>(ids + rows);
      float* row_factors = gradients + rows * dim;
      if (factors) part.row_factors = row_factors;
      part.ids = absl::MakeConstSpan(ids, rows);
      part.gradients = gradients;
      part.memory = std::move(memory);
      for (const ParsedSlice* slice : group) {
        part.pulled_version = std::min(part.pulled_version, slice->pulled_version);
        ids = std::copy(slice->ids.begin(), slice->ids.end(), ids);
        row_factors = std::fill_n(row_factors, slice->ids.size(), slice->learning_rate_factor);
        if (slice->pooling == v1::NONE) {
          gradients = std::copy(slice->gradients.begin(), slice->gradients.end(), gradients);
        } else {
          ExpandBags(slice->gradients.data(), slice->offsets, dim, slice->pooling, gradients);
          gradients += slice->ids.size() * dim;
        }
      }
    }
    part.memory_bytes = part.ids.size() * (sizeof(uint64_t) + (dim + (factors ? 1 : 0)) * sizeof(float));
    if (group.size() > 1 || first.pooling != v1::NONE || factors) continue;
    in_place.push_back(parts.size() - 1);
    in_place_bytes += part.memory_bytes;
  }
  // Together they hold all of it, the ids as they came and their copy as well.
  for (const size_t i : in_place) {
    if (in_place_bytes == 0) break;
    const double share = static_cast<double>(parts[i].memory_bytes) / static_cast<double>(in_place_bytes);
    parts[i].memory_bytes = static_cast<uint64_t>(share * static_cast<double>(request->memory_bytes));
  }
  return parts;
}

}  // namespace tandem::ps
