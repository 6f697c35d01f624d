// SPDX-License-Identifier: Apache-2.0
#include "python/src/replay_client.h"

#include <algorithm>

#include "absl/container/inlined_vector.h"
#include "base/status.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "nanobind/ndarray.h"
#include "nanobind/stl/optional.h"
#include "nanobind/stl/string.h"
#include "nanobind/stl/tuple.h"
#include "nanobind/stl/vector.h"
#include "python/src/config.h"
#include "replay/client/may_repeat.h"
#include "replay/wire/messages.h"

namespace nb = nanobind;

namespace tandem::python {
namespace {

using replay::Batch;
using replay::Window;
using replay::Writer;

// Steps below this are copied with the GIL, which takes less time than releasing it.
constexpr size_t kReleaseGilForBytes = 32 << 10;
// How long close() waits for the end of a call that it has ended.
constexpr double kCloseTurnS = 1;

std::optional<DType> DTypeOfArray(const nb::dlpack::dtype& dtype) {
  if (dtype.lanes != 1) return std::nullopt;
  const auto is = [&](nb::dlpack::dtype_code code, int bits) {
    return dtype.code == static_cast<uint8_t>(code) && dtype.bits == bits;
  };
  using Code = nb::dlpack::dtype_code;
  if (is(Code::UInt, 8)) return DType::kU8;
  if (is(Code::Int, 8)) return DType::kI8;
  if (is(Code::Int, 32)) return DType::kI32;
  if (is(Code::Int, 64)) return DType::kI64;
  if (is(Code::Float, 16)) return DType::kF16;
  if (is(Code::Bfloat, 16)) return DType::kBF16;
  if (is(Code::UInt, 16)) return DType::kBF16;  // NumPy has no bfloat16: its bits
  if (is(Code::Float, 32)) return DType::kF32;
  if (is(Code::Float, 64)) return DType::kF64;
  return std::nullopt;
}

WindowTuple ToTuple(const Window& window) { return {window.first, window.steps, window.repeat_first}; }

// Returns an array over memory that `owner` keeps.
template <typename T>
nb::object ArrayOver(const T* data, size_t size, const nb::capsule& owner) {
  return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(const_cast<T*>(data), {size}, owner));
}

template <typename Pointer>
void ReleaseWithoutGil(Pointer& pointer) {
  GilReleased release;
  pointer.reset();
}

}  // namespace

nb::tuple BatchToPython(Batch batch) {
  auto held = std::make_unique<Batch>(std::move(batch));
  const Batch& b = *held;
  const nb::capsule owner(held.get(), [](void* pointer) noexcept { delete static_cast<Batch*>(pointer); });
  (void)held.release();
  nb::list columns;
  for (const replay::BatchColumn& column : b.columns) {
    const nb::object lengths =
        column.lengths.empty() ? nb::none() : ArrayOver(column.lengths.data(), column.lengths.size(), owner);
    columns.append(
        nb::make_tuple(column.column.name, static_cast<int>(column.column.dtype),
                       nb::tuple(nb::cast(column.column.shape)), column.steps, lengths,
                       ArrayOver(reinterpret_cast<const uint8_t*>(column.data.get()), column.bytes, owner)));
  }
  const size_t n = b.size();
  return nb::make_tuple(ArrayOver(b.keys.data(), n, owner), ArrayOver(b.probabilities.data(), n, owner),
                        ArrayOver(b.priorities.data(), n, owner), ArrayOver(b.times_sampled.data(), n, owner),
                        ArrayOver(b.min_versions.data(), n, owner),
                        ArrayOver(b.max_versions.data(), n, owner), b.table_items, b.mass,
                        b.committed_version ? nb::cast(*b.committed_version) : nb::none(), columns);
}

// ---- Writers.

PyReplayWriter::PyReplayWriter(std::shared_ptr<Gate> gate, std::shared_ptr<OnConnection<Writer>> writer,
                               uint32_t max_pending_items)
    : gate_(std::make_shared<Gate>("writer", std::move(gate))),
      max_pending_items_(max_pending_items),
      writer_(std::move(writer)) {}

PyReplayWriter::~PyReplayWriter() { ReleaseWithoutGil(writer_); }

TakenTurn PyReplayWriter::Take(double timeout_s) {
  TakenTurn turn = TakeTurn(*gate_, turn_, "writer", timeout_s);
  if (writer_ == nullptr) Raise(absl::CancelledError("this writer is closed"));
  return turn;
}

void PyReplayWriter::Deliver(std::shared_ptr<OnConnection<Writer>> writer, TakenTurn turn, double timeout_s) {
  if (!writer->object->delivery_due()) return;
  RaiseIfError(
      CallUntil(gate_, timeout_s, [writer = std::move(writer), turn = std::move(turn)](absl::Time deadline) {
        return writer->object->Deliver(deadline);
      }));
}

void PyReplayWriter::Append(nb::list values, size_t steps, const std::vector<bool>& is_first,
                            const std::vector<int64_t>& versions, double timeout_s) {
  TakenTurn turn = Take(timeout_s);
  const std::shared_ptr<OnConnection<Writer>> writer =
      writer_;  // close() may drop it while the GIL is released
  absl::InlinedVector<ConstTensorView, 16> views;
  size_t bytes = 0;
  for (nb::handle value : values) {
    nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu> array;
    const bool fits = nb::try_cast(value, array, /*convert=*/false);
    const std::optional<DType> dtype = fits ? DTypeOfArray(array.dtype()) : std::nullopt;
    if (!dtype || steps == 0 || array.size() % steps != 0) {
      Raise(absl::InvalidArgumentError(
          "a step must have contiguous arrays of a dtype that replay tables have"));
    }
    views.emplace_back(array.data(), array.size() / steps, *dtype);
    bytes += array.nbytes();
  }
  const auto append = [&]() -> absl::Status {
    for (size_t step = 0; step < steps; ++step) {
      const bool first = step < is_first.size() && is_first[step];
      const int64_t version = versions.size() == 1 ? versions[0] : versions[step];
      TANDEM_RETURN_IF_ERROR(writer->object->Append(views, {.is_first = first, .policy_version = version}));
      for (ConstTensorView& view : views) view.data = static_cast<const char*>(view.data) + view.bytes();
    }
    return absl::OkStatus();
  };
  absl::Status appended;
  if (bytes < kReleaseGilForBytes) {
    appended = append();
  } else {
    GilReleased release;
    appended = append();
  }
  RaiseIfError(appended);
  Deliver(writer, std::move(turn), timeout_s);
}

WindowTuple PyReplayWriter::Last(uint32_t steps, uint32_t skip, bool across_episodes) {
  const TakenTurn turn = Take();
  return ToTuple(writer().Last(steps, skip, across_episodes));
}

WindowTuple PyReplayWriter::Stack(uint32_t steps, uint32_t skip) {
  const TakenTurn turn = Take();
  return ToTuple(writer().Stack(steps, skip));
}

uint64_t PyReplayWriter::EpisodeSteps() {
  const TakenTurn turn = Take();
  return writer().episode_steps();
}

void PyReplayWriter::CreateItem(const std::string& table, std::optional<double> priority,
                                const std::vector<ItemColumnTuple>& columns, double timeout_s) {
  std::optional<TakenTurn> turn(Take(timeout_s));
  if (writer().pending_items() >= max_pending_items_) {
    // Makes room, or says why there is none.
    Deliver(writer_, *std::move(turn), timeout_s);
    turn.emplace(Take(timeout_s));
  }
  std::vector<replay::ItemColumn> wanted;
  for (const auto& [name, source, window] : columns) {
    const auto [first, steps, repeat_first] = window;
    wanted.push_back({.name = name,
                      .source = source,
                      .window = {.first = first, .steps = steps, .repeat_first = repeat_first}});
  }
  RaiseIfError(writer().CreateItem(table, priority, wanted));
  Deliver(writer_, *std::move(turn), timeout_s);
}

void PyReplayWriter::Hold(const std::string& table, uint64_t ticket, int64_t min_version, double lease_s) {
  const TakenTurn turn = Take();
  writer().Hold(table, {.id = ticket, .min_version = min_version, .lease = absl::Seconds(lease_s)});
}

void PyReplayWriter::Flush(double timeout_s) {
  TakenTurn turn = Take(timeout_s);
  RaiseIfError(CallUntil(gate_, timeout_s, [held = writer_, turn = std::move(turn)](absl::Time deadline) {
    return held->object->Flush(deadline);
  }));
}

size_t PyReplayWriter::PendingItems() {
  const TakenTurn turn = Take();
  return writer().pending_items();
}

uint64_t PyReplayWriter::DroppedItems() {
  const TakenTurn turn = Take();
  return writer().dropped_items();
}

std::vector<std::pair<std::string, std::vector<uint64_t>>> PyReplayWriter::Close() {
  gate_->Close();  // ends a call under way, which has a reference of its own
  std::vector<std::pair<std::string, std::vector<uint64_t>>> held;
  std::shared_ptr<OnConnection<Writer>> writer = std::exchange(writer_, nullptr);
  if (writer == nullptr) return held;
  GilReleased release;
  if (turn_->Take(kCloseTurnS)) {
    for (const replay::TicketHolder& tickets : writer->object->held_tickets()) {
      if (!tickets.empty()) held.emplace_back(tickets.table(), tickets.Ids());
    }
    turn_->Return();
  }
  writer.reset();
  return held;
}

// ---- Samplers.

PyReplaySampler::~PyReplaySampler() { ReleaseWithoutGil(sampler_); }

nb::tuple PyReplaySampler::Next(double timeout_s) {
  const TakenTurn turn = TakeTurn(*gate_, turn_, "sampler", timeout_s);
  const std::shared_ptr<OnConnection<replay::Sampler>> sampler = sampler_;
  if (sampler == nullptr) Raise(absl::CancelledError("this sampler is closed"));
  std::optional<absl::StatusOr<Batch>> batch;
  WaitInSlices(timeout_s, [&](double seconds) {
    if (gate_->closed() || closed_) {
      batch.emplace(gate_->closed() ? gate_->Closed() : absl::CancelledError("this sampler is closed"));
      return true;
    }
    batch.emplace(sampler->object->Next(MonotonicNow() + absl::Seconds(seconds)));
    return batch->ok() || !replay::MayRepeat(batch->status());
  });
  return BatchToPython(ValueOrRaise(*std::move(batch)));
}

void PyReplaySampler::Close() {
  closed_ = true;  // a call under way has a reference of its own
  std::shared_ptr<OnConnection<replay::Sampler>> sampler = std::exchange(sampler_, nullptr);
  ReleaseWithoutGil(sampler);
}

// ---- Clients.

PyReplayClient::PyReplayClient(std::unique_ptr<ReplayConnection> connection, double timeout_s)
    : timeout_s_(timeout_s), connection_(LeakAfterFork(std::move(connection))) {}

PyReplayClient::~PyReplayClient() { Close(); }

void PyReplayClient::Close() {
  gate_->Close();
  std::shared_ptr<ReplayConnection> connection = std::exchange(connection_, nullptr);
  ReleaseWithoutGil(connection);
}

std::shared_ptr<ReplayConnection> PyReplayClient::Use() const {
  gate_->Check();
  return connection_;
}

void PyReplayClient::CreateTable(const std::string& json) {
  replay::v1::ReplayTableOptions message;
  RaiseIfError(FromJson(json, &message));
  const replay::TableOptions options = ValueOrRaise(replay::FromProto(message));
  RaiseIfError(CallUntil(gate_, timeout_s_, [connection = Use(), options](absl::Time) {
    return connection->replay->CreateTable(options);
  }));
}

std::unique_ptr<PyReplayWriter> PyReplayClient::OpenWriter(
    const std::string& name, const std::vector<std::tuple<std::string, int, std::vector<int64_t>>>& columns,
    uint32_t chunk_steps, uint32_t history_steps, uint32_t max_pending_items) {
  auto writer = std::make_unique<OnConnection<Writer>>();
  writer->connection = Use();
  std::vector<replay::Column> described;
  for (const auto& [column, dtype, shape] : columns) {
    described.push_back({.name = column, .dtype = static_cast<DType>(dtype), .shape = shape});
  }
  writer->object = ValueOrRaise(Writer::Create(writer->connection->replay.get(), std::move(described),
                                               {.name = name,
                                                .chunk_steps = chunk_steps,
                                                .history_steps = history_steps,
                                                .max_pending_items = max_pending_items,
                                                .deliver_on_request = true}));
  return std::make_unique<PyReplayWriter>(gate_, LeakAfterFork(std::move(writer)), max_pending_items);
}

std::unique_ptr<PyReplaySampler> PyReplayClient::OpenSampler(const std::string& name,
                                                             const std::string& table, uint32_t batch,
                                                             uint32_t min_batch, uint32_t prefetch,
                                                             size_t prefetch_bytes) {
  auto sampler = std::make_unique<OnConnection<replay::Sampler>>();
  sampler->connection = Use();
  sampler->object = ValueOrRaise(replay::Sampler::Create(sampler->connection->replay.get(),
                                                         {.name = name,
                                                          .table = table,
                                                          .size = {.batch = batch, .min_batch = min_batch},
                                                          .prefetch = prefetch,
                                                          .prefetch_bytes = prefetch_bytes}));
  return std::make_unique<PyReplaySampler>(gate_, LeakAfterFork(std::move(sampler)));
}

nb::tuple PyReplayClient::Sample(const std::string& table, uint32_t batch, uint32_t min_batch,
                                 double timeout_s) {
  return BatchToPython(ValueOrRaise(
      CallUntil(gate_, timeout_s, [connection = Use(), table, batch, min_batch](absl::Time deadline) {
        return connection->replay->Sample(table, {.batch = batch, .min_batch = min_batch}, deadline);
      })));
}

uint64_t PyReplayClient::UpdatePriorities(const std::string& table, nb::object keys, nb::object priorities) {
  const auto key_array =
      nb::cast<nb::ndarray<const uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>>(keys);
  const auto priority_array =
      nb::cast<nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>>(priorities);
  std::vector<uint64_t> of(key_array.data(), key_array.data() + key_array.size());
  std::vector<double> to(priority_array.data(), priority_array.data() + priority_array.size());
  return ValueOrRaise(CallUntil(
      gate_, timeout_s_, [connection = Use(), table, of = std::move(of), to = std::move(to)](absl::Time) {
        return connection->replay->UpdatePriorities(table, of, to);
      }));
}

std::vector<std::tuple<uint64_t, int64_t, double, uint64_t>> PyReplayClient::Admit(const std::string& table,
                                                                                   const std::string& actor,
                                                                                   uint32_t count,
                                                                                   double timeout_s) {
  const std::vector<replay::Ticket> tickets = ValueOrRaise(
      CallUntil(gate_, timeout_s, [connection = Use(), table, actor, count](absl::Time deadline) {
        return connection->replay->Admit(table, {.actor = actor, .count = count}, deadline);
      }));
  std::vector<std::tuple<uint64_t, int64_t, double, uint64_t>> tuples;
  for (const replay::Ticket& ticket : tickets) {
    tuples.emplace_back(ticket.id, ticket.min_version, absl::ToDoubleSeconds(ticket.lease), ticket.epoch);
  }
  return tuples;
}

uint64_t PyReplayClient::Renew(const std::string& table, const std::vector<uint64_t>& tickets, bool end) {
  return ValueOrRaise(CallUntil(gate_, timeout_s_, [connection = Use(), table, tickets, end](absl::Time) {
    return end ? connection->replay->ReturnTickets(table, tickets)
               : connection->replay->Renew(table, tickets);
  }));
}

void PyReplayClient::Commit(const std::string& table, uint64_t epoch, int64_t version,
                            uint64_t items_consumed) {
  const replay::CommittedVersion committed = {
      .epoch = epoch, .version = version, .items_consumed = items_consumed};
  RaiseIfError(CallUntil(gate_, timeout_s_, [connection = Use(), table, committed](absl::Time) {
    return connection->replay->Commit(table, committed);
  }));
}

std::string PyReplayClient::Call(const std::string& method, const std::string& request, double timeout_s) {
  const auto* const described =
      google::protobuf::DescriptorPool::generated_pool()->FindMethodByName("tandem.v1.Replay." + method);
  if (described == nullptr) Raise(absl::UnimplementedError("replay servers have no method " + method));
  auto* const factory = google::protobuf::MessageFactory::generated_factory();
  std::shared_ptr<google::protobuf::Message> sent(factory->GetPrototype(described->input_type())->New());
  std::shared_ptr<google::protobuf::Message> received(factory->GetPrototype(described->output_type())->New());
  RaiseIfError(FromJson(request, sent.get()));
  const bool repeatable = method != "Reset";  // a second one would remove what was inserted meanwhile
  RaiseIfError(CallUntil(gate_, timeout_s,
                         [connection = Use(), method, sent, received, repeatable](absl::Time deadline) {
                           received->Clear();
                           return rpc::CallProto(
                               *connection->channel, "/tandem.v1.Replay/" + method, *sent, received.get(),
                               {.timeout = deadline - MonotonicNow(), .idempotent = repeatable});
                         },
                         {.whole = true, .once = !repeatable}));
  return ToJson(*received);
}

}  // namespace tandem::python
