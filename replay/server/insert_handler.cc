// SPDX-License-Identifier: Apache-2.0
#include "replay/server/insert_handler.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/status.h"
#include "replay/client/may_repeat.h"
#include "replay/wire/messages.h"
#include "rpc/wire/bulk_codec.h"

namespace tandem::replay {
namespace {

constexpr size_t kMaxWriterName = 256;
constexpr size_t kMaxLayoutsOfWriter = 64;
constexpr int kMaxParts = 65536;
constexpr int64_t kMaxSlices = int64_t{1} << 20;
constexpr size_t kKeptWaiting = 256;
constexpr absl::Duration kSweepEvery = absl::Minutes(1);
constexpr absl::Duration kKeepIdle = absl::Minutes(10);
constexpr absl::Duration kMemoryPoll = absl::Milliseconds(5);
// Requests that wait are made again, so that for a moment none may wait.
constexpr absl::Duration kBetweenWaits = absl::Seconds(1);
constexpr absl::Duration kLongWait = absl::Minutes(1);

// Returns true if the layout has these columns.
bool HasColumns(const ItemLayout& layout,
                const google::protobuf::RepeatedPtrField<v1::ReplayItemColumn>& columns) {
  if (layout.sources.size() != static_cast<size_t>(columns.size())) return false;
  for (int i = 0; i < columns.size(); ++i) {
    const auto c = static_cast<size_t>(i);
    if (layout.sources[c] != columns[i].source() || layout.items->column(c).name != columns[i].name())
      return false;
  }
  return true;
}

// InvalidArgument: the request has so many parts that handling it would take far more memory than its bytes.
absl::Status CheckCounts(const v1::ReplayInsertRequest& request) {
  int64_t slices = 0;
  for (const v1::ReplayItem& item : request.items())
    slices += item.slices_size() / 3 + item.slices_end_size();
  if (request.items_size() <= kMaxParts && request.chunks_size() <= kMaxParts &&
      request.chunk_keys_size() <= kMaxParts && slices <= kMaxSlices) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "a request has ", request.items_size(), " items, ", request.chunks_size(), " chunks, ",
      request.chunk_keys_size(), " chunk keys and ", slices, " slices; of each of the first three ",
      kMaxParts, " are possible, and ", kMaxSlices, " slices: send several requests"));
}

}  // namespace

std::shared_ptr<InsertHandler::Writer> InsertHandler::FindWriter(const std::string& name) {
  if (name.empty()) return std::make_shared<Writer>();
  const absl::Time now = options_.clock->Now();
  std::vector<Writer::Chunks> dropped;  // freed without the lock
  absl::MutexLock lock(&mutex_);
  if (now - last_sweep_ > kSweepEvery) DropIdleChunks(now, &dropped);
  if (writers_.size() >= InsertFence::kMaxWriters) {
    std::erase_if(writers_, [](const auto& entry) { return entry.second.use_count() == 1; });
  }
  std::shared_ptr<Writer>& writer = writers_[name];
  if (writer == nullptr) writer = std::make_shared<Writer>();
  return writer;
}

void InsertHandler::DropIdleChunks(absl::Time now, std::vector<Writer::Chunks>* dropped) {
  last_sweep_ = now;
  for (const auto& [name, writer] : writers_) {
    if (writer.use_count() > 1) continue;  // a call uses it, and may hold its mutex for long
    absl::MutexLock lock(&writer->mutex);
    if (now - writer->last_request > kKeepIdle) dropped->push_back(std::exchange(writer->chunks, {}));
  }
}

void InsertHandler::Handle(std::shared_ptr<rpc::ServerCall> call) { Process(call, Turn::kFirst); }

void InsertHandler::Process(const std::shared_ptr<rpc::ServerCall>& call, Turn turn) {
  v1::ReplayInsertRequest request;
  Bytes payload;
  absl::Status status = rpc::DecodeBulk(call->request(), &request, &payload, options_.max_header_bytes);
  if (!status.ok()) return call->Finish(std::move(status));
  if (request.writer().size() > kMaxWriterName) {
    return call->Finish(absl::InvalidArgumentError(absl::StrCat(
        "a writer's name has ", request.writer().size(), " bytes; it must have at most ", kMaxWriterName)));
  }
  absl::StatusOr<std::shared_ptr<ServedTable>> served = tables_.Find(request.table());
  if (!served.ok()) return call->Finish(served.status());
  absl::StatusOr<std::vector<NewItem>> items;
  const std::shared_ptr<Writer> writer = FindWriter(request.writer());
  std::vector<Waiting> replaced;
  const bool may_wait = ItemsLeaveByThemselves((*served)->table->created_options());
  uint64_t short_of = 0;
  {
    absl::MutexLock lock(&writer->mutex);
    writer->last_request = options_.clock->Now();
    if (request.incarnation() > writer->incarnation) replaced = std::exchange(writer->waiting, {});
    items = Parse(request, payload, may_wait && turn == Turn::kFirst, writer.get(), &short_of);
  }
  for (const Waiting& old : replaced) {
    old.table->Cancel(old.call, absl::FailedPreconditionError(absl::StrCat(
                                    options_.server, ", table '", old.table->name(), "': a newer writer '",
                                    request.writer(), "' has replaced this one")));
  }
  if (short_of > 0) {
    if (may_wait && short_of <= options_.max_memory_bytes && turn != Turn::kLast) {
      return WaitForMemory(call, short_of, request.no_wait(), turn);
    }
    if (turn == Turn::kLast) {
      items = absl::ResourceExhaustedError(absl::StrCat(items.status().message(),
                                                        "; none becomes free: the tables that items leave "
                                                        "are empty, or their samples wait for more items"));
    }
    ++memory_refusals_;
  }
  if (!items.ok()) {
    return call->Finish(Annotate(items.status(), absl::StrCat(options_.server, ", table '", request.table(),
                                                              "', writer '", request.writer(), "'")));
  }
  Start(call, request, *std::move(items), *served, writer.get());
}

void InsertHandler::WaitForMemory(const std::shared_ptr<rpc::ServerCall>& call, uint64_t bytes, bool no_wait,
                                  Turn turn) {
  if (no_wait) return call->Finish(absl::DeadlineExceededError(OutOfMemory(bytes).message()));
  const std::shared_ptr<ParkedCalls::Entry> parked = parked_.NewEntry();
  bool stopped = false;
  {
    absl::MutexLock lock(&memory_mutex_);
    stopped = stopped_;
    if (!stopped) {
      memory_waits_.insert(turn == Turn::kFirst ? memory_waits_.end() : memory_waits_.begin(),
                           {.call = call, .parked = parked, .bytes = bytes});
      if (!std::exchange(polls_, true)) {
        polling_.Schedule(MonotonicNow() + kMemoryPoll, [this] { RunMemoryWaits(); });
      }
    }
  }
  if (stopped) return call->Finish(absl::UnavailableError(absl::StrCat(options_.server, " stops")));
  // The call is in the list, so that each way to end it finds it there.
  const rpc::ServerCall* const waiting = call.get();
  const bool may_wait = parked_.Park(parked, *call, call->request().size(), [this, waiting, bytes] {
    std::shared_ptr<rpc::ServerCall> expired = TakeMemoryWait(waiting);
    if (expired != nullptr) expired->Finish(absl::DeadlineExceededError(OutOfMemory(bytes).message()));
  });
  if (may_wait || TakeMemoryWait(waiting) == nullptr) return;
  call->Finish(
      absl::UnavailableError(absl::StrCat(options_.server, ": calls that wait hold ", parked_.bytes(),
                                          " bytes and may hold ", parked_.max_bytes(), " (--max-parked)")));
}

std::shared_ptr<rpc::ServerCall> InsertHandler::TakeMemoryWait(const rpc::ServerCall* call) {
  MemoryWait taken;
  {
    absl::MutexLock lock(&memory_mutex_);
    const auto found = std::find_if(memory_waits_.begin(), memory_waits_.end(),
                                    [call](const MemoryWait& wait) { return wait.call.get() == call; });
    if (found == memory_waits_.end()) return nullptr;
    taken = std::move(*found);
    memory_waits_.erase(found);
  }
  taken.parked->Over();
  return taken.call;
}

void InsertHandler::RunMemoryWaits() {
  while (true) {
    const bool may_become_free = MemoryMayBecomeFree();
    MemoryWait next;
    Turn turn = Turn::kWaited;
    {
      absl::MutexLock lock(&memory_mutex_);
      const auto gone = std::find_if(memory_waits_.begin(), memory_waits_.end(),
                                     [](const MemoryWait& wait) { return wait.call->IsCancelled(); });
      const bool fits = !memory_waits_.empty() &&
                        memory_.bytes() + memory_waits_.front().bytes <= options_.max_memory_bytes;
      if (fits) {
        short_since_ = stuck_since_ = absl::InfiniteFuture();
      } else if (!memory_waits_.empty() && RefusesFirst(may_become_free)) {
        turn = Turn::kLast;
      }
      const bool takes_first = gone == memory_waits_.end() && (fits || turn == Turn::kLast);
      const auto found = takes_first ? memory_waits_.begin() : gone;
      if (found == memory_waits_.end()) {
        polls_ = !memory_waits_.empty() && !stopped_;
        if (polls_) polling_.Schedule(MonotonicNow() + kMemoryPoll, [this] { RunMemoryWaits(); });
        return;
      }
      next = std::move(*found);
      memory_waits_.erase(found);
    }
    next.parked->Over();
    if (next.call->IsCancelled()) {  // the client is gone, or the deadline has passed
      next.call->Finish(absl::DeadlineExceededError(OutOfMemory(next.bytes).message()));
    } else {
      Process(next.call, turn);
    }
  }
}

bool InsertHandler::MemoryMayBecomeFree() const {
  for (const std::shared_ptr<ServedTable>& served : tables_.All()) {
    if (served->table->MayLoseItems()) return true;
  }
  return options_.answers_keep_items != nullptr && options_.answers_keep_items();
}

bool InsertHandler::RefusesFirst(bool may_become_free) {
  const absl::Time now = MonotonicNow();
  if (now - last_short_ > kBetweenWaits) short_since_ = stuck_since_ = absl::InfiniteFuture();
  last_short_ = now;
  short_since_ = std::min(short_since_, now);
  stuck_since_ = may_become_free ? absl::InfiniteFuture() : std::min(stuck_since_, now);
  if (now - short_since_ > kLongWait && now - warned_ > kLongWait) {
    warned_ = now;
    LogWarning(absl::StrCat(options_.server, ": ", memory_waits_.size(),
                            " inserts wait for memory, and none has found any for ",
                            absl::FormatDuration(absl::Trunc(now - short_since_, absl::Seconds(1))), ": ",
                            OutOfMemory(memory_waits_.front().bytes).message()));
  }
  return now - stuck_since_ >= options_.memory_patience;
}

void InsertHandler::Stop() {
  std::deque<MemoryWait> ended;
  {
    absl::MutexLock lock(&memory_mutex_);
    stopped_ = true;
    ended.swap(memory_waits_);
  }
  for (const MemoryWait& wait : ended) {
    wait.parked->Over();
    wait.call->Finish(absl::UnavailableError(absl::StrCat(options_.server, " stops")));
  }
  polling_.Stop();
}

uint64_t InsertHandler::memory_waits() const {
  absl::MutexLock lock(&memory_mutex_);
  return memory_waits_.size();
}

absl::Status InsertHandler::OutOfMemory(uint64_t bytes) const {
  return absl::ResourceExhaustedError(absl::StrCat(
      "chunks hold ", memory_.bytes(), " bytes and may hold ", options_.max_memory_bytes,
      ", and the request has ", bytes,
      " more: give the tables smaller max_items or max_bytes, or the server more memory (--max-memory)"));
}

absl::StatusOr<std::vector<NewItem>> InsertHandler::Parse(const v1::ReplayInsertRequest& request,
                                                          const Bytes& payload, bool queues, Writer* writer,
                                                          uint64_t* short_of) {
  if (request.incarnation() < writer->incarnation) {
    return absl::FailedPreconditionError(absl::StrCat("incarnation ", request.incarnation(),
                                                      " has been replaced by ", writer->incarnation,
                                                      ", which uses the same name: stop one of the two"));
  }
  if (request.incarnation() > writer->incarnation) {
    writer->incarnation = request.incarnation();
    writer->chunks.clear();
  }
  TANDEM_RETURN_IF_ERROR(CheckCounts(request));
  TANDEM_RETURN_IF_ERROR(TakeSignature(request, writer));
  // Chunks that neither this request nor a later one refers to, before new ones need their memory.
  uint64_t needed = request.release_below();
  for (const uint64_t key : request.chunk_keys()) needed = std::min(needed, key);
  writer->chunks.erase(writer->chunks.begin(), writer->chunks.lower_bound(needed));
  TANDEM_RETURN_IF_ERROR(TakeChunks(request, payload, queues, writer, short_of));
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<const ItemLayout> layout, Layout(request, writer));
  std::vector<const std::shared_ptr<const Chunk>*> chunks;
  for (const uint64_t key : request.chunk_keys()) {
    const auto found = writer->chunks.find(key);
    if (found == writer->chunks.end()) {
      return absl::FailedPreconditionError(
          absl::StrCat("chunk ", key, " is not here, or not any more: send it again"));
    }
    chunks.push_back(&found->second);
  }
  std::vector<NewItem> items;
  items.reserve(static_cast<size_t>(request.items_size()));
  for (const v1::ReplayItem& message : request.items()) {
    auto trajectory = std::make_shared<Trajectory>();
    trajectory->layout = layout;
    trajectory->min_version = message.min_version();
    trajectory->max_version = message.max_version();
    absl::InlinedVector<uint32_t, 4> used;
    TANDEM_RETURN_IF_ERROR(
        SlicesFromProto(message.slices(), message.slices_end(), chunks.size(), trajectory.get(), &used));
    for (const uint32_t index : used) trajectory->chunks.push_back(*chunks[index]);
    TANDEM_RETURN_IF_ERROR(CheckSize(*trajectory));
    NewItem& item = items.emplace_back();
    if (message.has_priority()) item.priority = message.priority();
    item.trajectory = std::move(trajectory);
    item.ticket = message.ticket();
  }
  writer->chunks.erase(writer->chunks.begin(), writer->chunks.lower_bound(request.release_below()));
  return items;
}

absl::Status InsertHandler::CheckSize(const Trajectory& trajectory) const {
  uint64_t steps = 0;
  for (const ChunkSlice& slice : trajectory.slices) steps += slice.length;
  if (steps * trajectory.layout->items->step_bytes() <= options_.max_item_bytes) return absl::OkStatus();
  TANDEM_RETURN_IF_ERROR(trajectory.Check());
  if (trajectory.bytes() <= options_.max_item_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("an item's values have ", trajectory.bytes(),
                                                 " bytes, and the response to a sample may have ",
                                                 options_.max_item_bytes, ": make it shorter"));
}

absl::Status InsertHandler::TakeSignature(const v1::ReplayInsertRequest& request, Writer* writer) {
  if (writer->signature != nullptr && Equal(request.step_columns(), writer->signature->columns())) {
    return absl::OkStatus();
  }
  TANDEM_ASSIGN_OR_RETURN(std::vector<Column> columns, FromProto(request.step_columns()));
  TANDEM_ASSIGN_OR_RETURN(writer->signature, Signature::Make(std::move(columns)));
  writer->layouts.clear();
  writer->chunks.clear();
  return absl::OkStatus();
}

absl::Status InsertHandler::TakeChunks(const v1::ReplayInsertRequest& request, const Bytes& payload,
                                       bool queues, Writer* writer, uint64_t* short_of) {
  const size_t step_bytes = writer->signature->step_bytes();
  uint64_t left = payload.size(), reserved = 0;
  for (const v1::ReplayChunk& message : request.chunks()) {
    const uint64_t bytes = uint64_t{message.steps()} * step_bytes;
    if (message.steps() == 0 || bytes > left) {
      return absl::InvalidArgumentError(absl::StrCat("chunk ", message.key(), " has ", message.steps(),
                                                     " steps of ", step_bytes, " bytes; the payload has ",
                                                     left, " bytes left"));
    }
    left -= bytes;
    const auto known = writer->chunks.find(message.key());
    if (known == writer->chunks.end()) {
      reserved += MemoryMeter::Cost(bytes);
    } else if (known->second->steps() != message.steps()) {
      return absl::InvalidArgumentError(absl::StrCat("chunk ", message.key(), " has ", message.steps(),
                                                     " steps; it had ", known->second->steps(), " before"));
    }
  }
  if (left > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the payload has ", left, " bytes that belong to no chunk"));
  }
  // All chunks or none: requests that wait must not hold what others wait for.
  const uint64_t max =
      options_.max_memory_bytes == 0 ? std::numeric_limits<uint64_t>::max() / 2 : options_.max_memory_bytes;
  const bool behind = queues && options_.max_memory_bytes > 0 && memory_waits() > 0;
  if (reserved > 0 && (behind || !memory_.Reserve(reserved, max))) {
    *short_of = reserved;
    return OutOfMemory(reserved);
  }
  BytesReader reader(payload);
  for (const v1::ReplayChunk& message : request.chunks()) {
    const uint64_t bytes = uint64_t{message.steps()} * step_bytes;
    std::shared_ptr<const Chunk>& chunk = writer->chunks[message.key()];
    if (chunk != nullptr && chunk->steps() == message.steps()) {  // known, or a second time in the request
      reader.Skip(bytes);
      continue;
    }
    if (chunk != nullptr) {
      memory_.Release(reserved);
      return absl::InvalidArgumentError(absl::StrCat("chunk ", message.key(), " is in the request with ",
                                                     chunk->steps(), " steps and with ", message.steps()));
    }
    auto data = std::make_unique_for_overwrite<char[]>(bytes);
    reader.Copy(data.get(), bytes);
    chunk = memory_.Share(
        std::make_unique<const Chunk>(message.key(), writer->signature, message.steps(), std::move(data)));
    reserved -= MemoryMeter::Cost(bytes);
  }
  memory_.Release(reserved);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const ItemLayout>> InsertHandler::Layout(
    const v1::ReplayInsertRequest& request, Writer* writer) {
  for (const std::shared_ptr<const ItemLayout>& layout : writer->layouts) {
    if (HasColumns(*layout, request.item_columns())) return layout;
  }
  std::vector<std::string> names;
  std::vector<size_t> sources;
  for (const v1::ReplayItemColumn& column : request.item_columns()) {
    names.push_back(column.name());
    sources.push_back(column.source());
  }
  TANDEM_ASSIGN_OR_RETURN(auto layout, ItemLayout::Make(writer->signature, names, std::move(sources)));
  if (writer->layouts.size() == kMaxLayoutsOfWriter) writer->layouts.erase(writer->layouts.begin());
  writer->layouts.push_back(layout);
  return layout;
}

void InsertHandler::Start(const std::shared_ptr<rpc::ServerCall>& call,
                          const v1::ReplayInsertRequest& request, std::vector<NewItem> items,
                          const std::shared_ptr<ServedTable>& served, Writer* writer) {
  Table::InsertHooks hooks;
  if (!request.writer().empty()) {
    const auto id =
        std::make_shared<const InsertId>(InsertId{.writer = request.writer(),
                                                  .incarnation = request.incarnation(),
                                                  .sequence = request.sequence(),
                                                  .acknowledged_items = request.acknowledged_items()});
    const size_t count = items.size();
    hooks.begin = [served, id, count] { return served->fence.Begin(*id, count); };
    hooks.progress = [served, id, count](size_t inserted) { served->fence.Progress(*id, inserted, count); };
  }
  const std::shared_ptr<ParkedCalls::Entry> entry = parked_.NewEntry();
  const std::string& client = call->caller().member.empty() ? request.writer() : call->caller().member;
  const uint64_t waiting = served->table->StartInsert(
      std::move(items), client, std::move(hooks),
      [call, entry, incarnation = options_.incarnation, report_refusal = request.report_refusal()](
          absl::Status status, size_t inserted) {
        entry->Over();
        if (!status.ok() && (!report_refusal || MayRepeat(status))) return call->Finish(std::move(status));
        v1::ReplayInsertResponse response;
        response.set_server_incarnation(incarnation);
        if (!status.ok()) {
          response.set_error_code(static_cast<uint32_t>(status.code()));
          response.set_error_message(std::string(status.message()));
          response.set_inserted(inserted);
        }
        call->Finish(rpc::internal::SerializeResponse(response));
      });
  if (waiting == 0) return;
  const std::shared_ptr<Table> table = served->table;
  if (request.no_wait()) return table->Expire(waiting);
  if (!request.writer().empty()) {
    absl::MutexLock lock(&writer->mutex);
    // A call that is over may stay in the list; to cancel it has no effect.
    if (writer->waiting.size() >= kKeptWaiting) writer->waiting.erase(writer->waiting.begin());
    writer->waiting.push_back({.table = table, .call = waiting});
  }
  if (!parked_.Park(entry, *call, call->request().size(), [table, waiting] { table->Expire(waiting); })) {
    return table->Cancel(
        waiting,
        absl::UnavailableError(absl::StrCat(
            options_.server, ": calls that wait hold ", parked_.bytes(), " bytes and may hold ",
            parked_.max_bytes(), " (--max-parked): samplers are behind, or there are too many writers")));
  }
  call->OnCancel([table, waiting] { table->Cancel(waiting, absl::CancelledError("the client is gone")); });
}

}  // namespace tandem::replay
