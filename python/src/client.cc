// SPDX-License-Identifier: Apache-2.0
#include "python/src/client.h"

#include <algorithm>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "nanobind/ndarray.h"
#include "nanobind/stl/optional.h"
#include "nanobind/stl/pair.h"
#include "nanobind/stl/shared_ptr.h"
#include "nanobind/stl/string.h"
#include "nanobind/stl/unique_ptr.h"
#include "nanobind/stl/vector.h"
#include "ps/client/client.h"
#include "ps/optimizers/optimizer.h"
#include "ps/table.h"
#include "python/src/batch_lookup.h"
#include "python/src/call.h"
#include "python/src/config.h"
#include "python/src/connection.h"
#include "python/src/errors.h"
#include "python/src/helper_thread.h"
#include "python/src/process.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace tandem::python {
namespace {

// Returns an array that Python has checked and keeps alive.
template <typename T>
T* At(nb::handle address) {
  return reinterpret_cast<T*>(nb::cast<uint64_t>(address));
}
template <typename T>
absl::Span<const T> SpanAt(nb::handle address, nb::handle count) {
  return {At<const T>(address), nb::cast<size_t>(count)};
}

// Returns the address of int64 or uint64 ids. Raises if a signed one is negative.
uint64_t CheckIds(const nb::ndarray<nb::ro, nb::ndim<1>, nb::c_contig, nb::device::cpu>& ids, const std::string& table) {
  if (ids.dtype() == nb::dtype<int64_t>()) {
    const auto* values = static_cast<const int64_t*>(ids.data());
    int64_t signs = 0;
    for (size_t i = 0; i < ids.size(); ++i) signs |= values[i];
    if (signs < 0) {
      Raise(absl::InvalidArgumentError(absl::StrCat("the ids of table '", table, "' contain ",
                                                    *std::min_element(values, values + ids.size()),
                                                    "; ids must not be negative (uint64 has ids of 2^63 and more)")));
    }
  }
  return reinterpret_cast<uint64_t>(ids.data());
}

// Parses [(table, ids, num ids, rows, pooling, offsets, num offsets), ...].
std::vector<ps::PullPart> ParsePullParts(nb::list list) {
  std::vector<ps::PullPart> parts;
  parts.reserve(nb::len(list));
  for (nb::handle item : list) {
    const nb::tuple part = nb::borrow<nb::tuple>(item);
    parts.push_back({.table = nb::cast<std::string>(part[0]),
                     .ids = SpanAt<uint64_t>(part[1], part[2]),
                     .rows = At<float>(part[3]),
                     .pooling = static_cast<v1::Pooling>(nb::cast<int>(part[4])),
                     .offsets = SpanAt<uint32_t>(part[5], part[6]),
                     .repeats = true});
  }
  return parts;
}

// A push's parts, with the versions to which they refer.
struct PushParts {
  std::vector<ps::PushPart> parts;
  std::vector<std::vector<uint64_t>> versions;
};

// Parses [(table, ids, num ids, gradients, pooling, offsets, num offsets, versions, learning rate factor), ...].
PushParts ParsePushParts(nb::list list) {
  PushParts parsed;
  parsed.parts.reserve(nb::len(list));
  parsed.versions.reserve(nb::len(list));
  for (nb::handle item : list) {
    const nb::tuple part = nb::borrow<nb::tuple>(item);
    parsed.versions.push_back(nb::cast<std::vector<uint64_t>>(part[7]));
    parsed.parts.push_back({.table = nb::cast<std::string>(part[0]),
                            .ids = SpanAt<uint64_t>(part[1], part[2]),
                            .gradients = At<const float>(part[3]),
                            .pooling = static_cast<v1::Pooling>(nb::cast<int>(part[4])),
                            .offsets = SpanAt<uint32_t>(part[5], part[6]),
                            .pulled_versions = parsed.versions.back(),
                            .learning_rate_factor = nb::cast<float>(part[8])});
  }
  return parsed;
}

nb::list ToPython(const ps::PullVersions& versions) {
  nb::list result;
  for (const std::vector<uint64_t>& part : versions) result.append(nb::tuple(nb::cast(part)));
  return result;
}

// Receives a call's responses in the thread that waits for it (ps::Client::PrepareInlinePoll), which saves a hand-over
// between threads. Made before the call starts; keeps the promise of PrepareInlinePoll if the call is not waited for.
class InlineWait {
 public:
  explicit InlineWait(ps::Client* client) : client_(client) { client_->PrepareInlinePoll(); }
  InlineWait(const InlineWait&) = delete;
  ~InlineWait() {
    if (client_ != nullptr) client_->InlinePoll([] { return true; });
  }
  // Receives until the call has ended, at most 100 ms. Called once, after the start, without the GIL.
  void Poll(const Call& call) {
    Clock* const clock = Clock::Real();
    const absl::Time end = clock->Now() + absl::Milliseconds(100);
    std::exchange(client_, nullptr)->InlinePoll([&] { return call.finished() || clock->Now() >= end; });
  }

 private:
  ps::Client* client_;
};

// Blocks until the call has ended. Requires the GIL.
void WaitFor(const Call& call) {
  if (!call.finished()) WaitInSlices(-1, [&](double seconds) { return call.WaitFor(seconds); });
}

// A connection that a call of Python uses: close() does not destroy it meanwhile. Destroyed with the GIL.
class ConnectionInUse {
 public:
  ConnectionInUse(std::shared_ptr<Connection> connection, CallCounter::Token call)
      : connection_(std::move(connection)), call_(std::move(call)) {}
  ConnectionInUse(ConnectionInUse&& other) = default;
  ~ConnectionInUse() {
    // While calls are accepted, the client has a reference too. Afterwards this one may be the last, and the
    // destructor of the connection waits for threads.
    if (connection_ == nullptr || !connection_->calls()->refuses()) return;
    nb::gil_scoped_release release;
    connection_.reset();
  }

  ps::Client* client() const { return connection_->client(); }
  const std::shared_ptr<Connection>& connection() const { return connection_; }
  // Hands out the token by which close() waits for the call. Called once.
  CallCounter::Token TakeCall() { return std::move(call_); }

 private:
  std::shared_ptr<Connection> connection_;
  CallCounter::Token call_;
};

class PyClient {
 public:
  explicit PyClient(std::unique_ptr<Connection> connection)
      : rank_(connection->rank()),
        world_size_(connection->world_size()),
        num_servers_(connection->client()->num_servers()),
        connection_(LeakAfterFork(std::move(connection))),
        released_(std::make_shared<ReleasedObjects>()) {}
  ~PyClient() {
    nb::gil_scoped_release release;
    connection_.reset();
  }

  // Tells the job how the program ends (connection.h). Waits for calls under way, which end by their own
  // deadlines, unless the program fails. If a signal handler raises meanwhile, the calls are cancelled. While
  // another thread waits for such a call, that thread releases the connection.
  void Close(int ending, const std::string& reason) {
    std::shared_ptr<Connection> connection = std::exchange(connection_, nullptr);
    if (connection == nullptr || ForkGeneration() != made_) return;
    connection->calls()->Refuse();
    Ending how = static_cast<Ending>(ending);
    std::string why = reason;
    std::exception_ptr raised;
    if (how != Ending::kFailed) {
      try {
        WaitInSlices(-1, [&](double seconds) { return connection->calls()->WaitForEnd(seconds); });
      } catch (...) {
        raised = std::current_exception();
        how = Ending::kFailed;
        why = "the program was interrupted while it closed its client";
      }
    }
    {
      nb::gil_scoped_release release;
      connection->End(how, why);
      connection.reset();
    }
    released_->Clear();
    if (raised != nullptr) std::rethrow_exception(raised);
  }
  bool closed() const { return connection_ == nullptr; }

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  int num_servers() const { return num_servers_; }
  std::vector<std::string> addresses() { return Use().connection()->addresses(); }

  std::shared_ptr<Call> StartPull(uint64_t step, bool read_only, nb::list parts, nb::object keep) {
    ConnectionInUse connection = Use();
    return StartPull(&connection, step, read_only, ParsePullParts(parts), std::move(keep));
  }
  nb::list Pull(uint64_t step, bool read_only, nb::list parts, nb::object keep) {
    ConnectionInUse connection = Use();
    std::vector<ps::PullPart> parsed = ParsePullParts(parts);
    InlineWait wait(connection.client());
    const std::shared_ptr<Call> call = StartPull(&connection, step, read_only, std::move(parsed), std::move(keep), &wait);
    WaitFor(*call);
    return ToPython(ValueOrRaise(call->result()));
  }

  // The most common pull: ids without bags of one table. Returns the version, or None if an array is not as C++ needs
  // it and has to be checked and converted in Python. Calls SetPulled.
  nb::object PullRows(uint64_t step, bool read_only, const std::string& table, uint32_t dim, nb::handle ids,
                      nb::handle out) {
    nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> id_array;
    nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu> rows;
    if (!nb::try_cast(ids, id_array, /*convert=*/false) || !nb::try_cast(out, rows, /*convert=*/false) ||
        rows.shape(0) != id_array.shape(0) || rows.shape(1) != dim) {
      return nb::none();
    }
    int64_t signs = 0;
    for (size_t i = 0; i < id_array.size(); ++i) signs |= id_array.data()[i];
    if (signs < 0) return nb::none();
    ConnectionInUse connection = Use();
    std::vector<ps::PullPart> parts;
    parts.push_back({.table = table,
                     .ids = {reinterpret_cast<const uint64_t*>(id_array.data()), id_array.size()},
                     .rows = rows.data(),
                     .repeats = true});
    const uint64_t number = NextPull();
    InlineWait wait(connection.client());
    const std::shared_ptr<Call> call =
        StartPull(&connection, step, read_only, std::move(parts), nb::make_tuple(ids, out), &wait);
    WaitFor(*call);
    nb::tuple version(nb::cast(ValueOrRaise(call->result()).front()));
    SetPulled(table, number, version);
    return version;
  }

  // The version of each table's latest pull, for pushes that name none. Pulls are numbered when they start, because
  // their results may be read in another order. These functions require the GIL, which guards what they use.
  uint64_t NextPull() { return next_pull_++; }
  void SetPulled(const std::string& table, uint64_t number, nb::tuple version) {
    const auto [at, is_new] = pulled_.try_emplace(table, number, version);
    if (is_new || at->second.first >= number) return;
    at->second.first = number;
    std::swap(at->second.second, version);  // the destructor of the old one may run Python code
  }
  nb::tuple Pulled(const std::string& table) const {
    const auto at = pulled_.find(table);
    return at == pulled_.end() ? nb::tuple() : at->second.second;
  }

  // Raises the error of a push that could not be started: then no server has seen anything of it.
  std::shared_ptr<Call> StartPush(uint64_t step, nb::list parts, float learning_rate_factor, float batch_share) {
    ConnectionInUse connection = UseToPush();
    PushParts parsed = ParsePushParts(parts);
    StartedPush push =
        StartPush(&connection, step, std::move(parsed.parts), OptionsOfPush(learning_rate_factor, batch_share));
    if (!push.started) Raise(push.call->result().status());
    return push.call;
  }
  // Calls `started` once the push has been started.
  void Push(uint64_t step, nb::list parts, float learning_rate_factor, float batch_share, nb::callable started) {
    ConnectionInUse connection = UseToPush();
    PushParts parsed = ParsePushParts(parts);
    InlineWait wait(connection.client());
    const StartedPush push =
        StartPush(&connection, step, std::move(parsed.parts), OptionsOfPush(learning_rate_factor, batch_share), &wait);
    if (push.started) started();
    WaitFor(*push.call);
    RaiseIfError(push.call->result().status());
  }

  // These pull and push the embeddings of a batch (batch_lookup.h).
  std::shared_ptr<Call> StartLookup(uint64_t step, bool read_only, std::shared_ptr<BatchLookup> lookup) {
    ConnectionInUse connection = Use();
    return StartLookup(&connection, step, read_only, std::move(lookup));
  }
  void PullLookup(uint64_t step, bool read_only, std::shared_ptr<BatchLookup> lookup) {
    ConnectionInUse connection = Use();
    InlineWait wait(connection.client());
    const std::shared_ptr<Call> call = StartLookup(&connection, step, read_only, std::move(lookup), &wait);
    WaitFor(*call);
    RaiseIfError(call->result().status());
  }
  // Raises like StartPush.
  std::shared_ptr<Call> StartGradients(uint64_t step, const std::vector<std::shared_ptr<BatchLookup>>& lookups,
                                       const std::vector<std::pair<std::string, uint32_t>>& tables,
                                       float learning_rate_factor, float batch_share) {
    ConnectionInUse connection = UseToPush();
    GradientPush gradients;
    {
      nb::gil_scoped_release release;
      gradients = TakePush(lookups, tables);
    }
    StartedPush push = StartPush(&connection, step, std::move(gradients.parts),
                                 OptionsOfPush(learning_rate_factor, batch_share));
    if (!push.started) Raise(push.call->result().status());
    return push.call;
  }

 private:
  // Returns the connection, or raises if the client was closed, if the process was forked, or if the job has
  // failed.
  ConnectionInUse Use() {
    if (ForkGeneration() != made_) {
      Raise(absl::FailedPreconditionError("this process was forked after the client had connected, and threads do not "
                                          "survive a fork; start the process by multiprocessing's spawn or forkserver, and "
                                          "connect in it"));
    }
    released_->Clear();  // may run code of Python that closes the client
    const std::shared_ptr<Connection> connection = connection_;
    if (connection == nullptr) Raise(absl::CancelledError("this client is closed"));
    std::optional<CallCounter::Token> call = CallCounter::Begin(connection->calls());
    if (!call.has_value()) Raise(absl::CancelledError("this client is closed"));
    RaiseIfError(connection->job_status());
    return ConnectionInUse(connection, *std::move(call));
  }
  // Runs a call that blocks, and ends by its own deadline, on a helper thread; so `function` must own what it
  // uses.
  template <typename Function>
  auto Blocking(Function function) {
    ConnectionInUse in_use = Use();
    struct Held {
      CallCounter::Token call;
      std::shared_ptr<Connection> connection;  // released before the call ends: close() has the last reference
    };
    return OnHelperThread([held = Held{in_use.TakeCall(), in_use.connection()}, function = std::move(function)] {
      return function(*held.connection);
    });
  }
  // Does the same for a call that pushes or writes rows: the connection is ready for it (Connection::PreparePush).
  ConnectionInUse UseToPush() {
    ConnectionInUse in_use = Use();
    if (!in_use.connection()->ready_to_push()) {
      RaiseIfError(Blocking([](Connection& connection) { return connection.PreparePush(); }));
    }
    return in_use;
  }

 public:
  void CreateTable(const std::string& json) {
    v1::TableConfig config;
    RaiseIfError(FromJson(json, &config));
    RaiseIfError(Blocking([=](Connection& connection) { return connection.client()->CreateTable(config); }));
  }
  void OpenTable(const std::string& table) {
    RaiseIfError(Blocking([=](Connection& connection) { return connection.client()->OpenTable(table); }));
  }
  void SetUpdateMode(const std::string& table, const std::string& text) {
    const v1::UpdateMode mode = ValueOrRaise(ps::ParseUpdateMode(text));
    RaiseIfError(Blocking([=](Connection& connection) { return connection.client()->SetUpdateMode(table, mode); }));
  }
  void SetWire(const std::string& table, int pull_values, int push_values) {
    const ps::WireOptions options{.pull_values = static_cast<v1::ValueFormat>(pull_values),
                                  .push_values = static_cast<v1::ValueFormat>(push_values)};
    RaiseIfError(Blocking([=](Connection& connection) { return connection.client()->SetWire(table, options); }));
  }
  void SetCache(const std::string& table, size_t bytes, uint32_t max_uses, uint64_t max_age, uint32_t push_bound) {
    const ps::CacheOptions options{
        .bytes = bytes, .max_uses = max_uses, .max_age = max_age, .push_bound = push_bound};
    RaiseIfError(Blocking([=](Connection& connection) { return connection.client()->SetCache(table, options); }));
  }
  void SetReadCache(const std::string& table, size_t bytes, double seconds) {
    const ps::ReadCacheOptions options{.bytes = bytes, .time_to_live = absl::Seconds(seconds)};
    RaiseIfError(Blocking([=](Connection& connection) { return connection.client()->SetReadCache(table, options); }));
  }
  void ClearReadCache(const std::string& table) {
    RaiseIfError(Use().client()->ClearReadCache(table));
  }
  nb::dict ReadCacheStatistics(const std::string& table) {
    const ps::ReadCacheStatistics s = ValueOrRaise(Use().client()->ReadCacheStatisticsOf(table));
    nb::dict result;
    const std::pair<const char*, uint64_t> counts[] = {
        {"lookups", s.lookups},   {"hits", s.hits},       {"expired", s.expired}, {"admitted", s.admitted},
        {"refused", s.refused},   {"evicted", s.evicted}, {"rows", s.rows},       {"bytes", s.bytes},
        {"forgotten", s.forgotten}, {"capacity", s.capacity}};
    for (const auto& [name, count] : counts) result[name] = count;
    return result;
  }
  // Returns (ids [n], rows with their state [n, floats], next bucket, next id, whether the scan is at its end).
  nb::tuple ScanRows(const std::string& table, uint32_t bucket, uint64_t first_id, size_t max_rows) {
    auto* const scanned = new ps::ScannedRows(ValueOrRaise(Blocking([=](Connection& connection) {
      return connection.client()->ScanRows(table, {.bucket = bucket, .first_id = first_id}, max_rows);
    })));
    const nb::capsule owner(scanned, [](void* rows) noexcept { delete static_cast<ps::ScannedRows*>(rows); });
    nb::ndarray<nb::numpy, uint64_t> ids(scanned->ids.data(), {scanned->ids.size()}, owner);
    nb::ndarray<nb::numpy, float> rows(scanned->states.values.data(),
                                       {scanned->ids.size(), scanned->states.row_floats()}, owner);
    return nb::make_tuple(std::move(ids), std::move(rows), scanned->next.bucket, scanned->next.first_id,
                          scanned->at_end);
  }
  void Flush(const std::string& table) {
    RaiseIfError(Blocking([=](Connection& connection) { return connection.client()->Flush(table); }));
  }
  void PushDeferred() {
    RaiseIfError(Blocking([](Connection& connection) { return connection.client()->PushDeferred(); }));
  }
  std::vector<std::string> ListTables(uint32_t hottest) {
    std::vector<std::string> tables;
    for (const v1::TableInfo& table :
         ValueOrRaise(Blocking([=](Connection& connection) { return connection.client()->ListTables(hottest); }))) {
      tables.push_back(ToJson(table));
    }
    return tables;
  }
  std::vector<std::string> ListServers() {
    std::vector<std::string> servers;
    for (const v1::ServerStatistics& server :
         ValueOrRaise(Blocking([](Connection& connection) { return connection.client()->ListServers(); }))) {
      servers.push_back(ToJson(server));
    }
    return servers;
  }
  std::vector<std::string> SaveCheckpoint(const std::string& directory) {
    std::vector<std::string> files;
    for (const v1::SavedFile& file :
         ValueOrRaise(Blocking([=](Connection& connection) { return connection.client()->SaveCheckpoint(directory); }))) {
      files.push_back(ToJson(file));
    }
    return files;
  }
  void LoadCheckpoint(const std::string& directory) {
    RaiseIfError(Blocking([=](Connection& connection) { return connection.client()->LoadCheckpoint(directory); }));
  }
  void StartPushEpoch() {
    RaiseIfError(Blocking([](Connection& connection) { return connection.StartPushEpoch(); }));
  }
  // Writes the rows at `rows`, [count x dim]; the optimizer's state of each begins anew.
  void WriteRows(const std::string& config_json, uint64_t ids, size_t count, uint64_t rows) {
    v1::TableConfig config;
    RaiseIfError(FromJson(config_json, &config));
    const std::unique_ptr<ps::Optimizer> optimizer = ValueOrRaise(ps::MakeOptimizer(config.optimizer()));
    ps::RowStates states{.dim = config.dim(),
                         .state_floats = static_cast<uint32_t>(optimizer->state_floats(config.dim()))};
    std::vector<uint64_t> copied_ids;
    {
      nb::gil_scoped_release release;
      const auto* const first_id = reinterpret_cast<const uint64_t*>(ids);
      copied_ids.assign(first_id, first_id + count);
      states.values.resize(count * states.row_floats());
      const auto* const weights = reinterpret_cast<const float*>(rows);
      for (size_t i = 0; i < count; ++i) {
        float* const row = states.row(i);
        std::copy_n(weights + i * states.dim, states.dim, row);
        optimizer->InitState(row, row + states.dim, states.dim);
      }
    }
    RaiseIfError(Blocking([name = config.name(), copied_ids = std::move(copied_ids),
                           states = std::move(states)](Connection& connection) {
      const absl::Status prepared = connection.PreparePush();
      return prepared.ok() ? connection.client()->WriteRowStates(name, copied_ids, states) : prepared;
    }));
  }

 private:
  static ps::PushOptions OptionsOfPush(float learning_rate_factor, float batch_share) {
    return {.learning_rate_factor = learning_rate_factor, .batch_share = batch_share};
  }

  // These start a call, and receive its responses if `wait` is not null.
  std::shared_ptr<Call> StartPull(ConnectionInUse* connection, uint64_t step, bool read_only,
                                  std::vector<ps::PullPart> parts, nb::object keep, InlineWait* wait = nullptr) {
    std::vector<nb::object> kept;
    kept.push_back(std::move(keep));
    auto call = std::make_shared<Call>(std::move(kept), released_);
    {
      nb::gil_scoped_release release;
      connection->client()->PullAsync(
          step, read_only, std::move(parts),
          [under_way = connection->TakeCall(), call](absl::StatusOr<ps::PullVersions> versions) {
            call->Finish(std::move(versions));
          });
      if (wait != nullptr) wait->Poll(*call);
    }
    RaiseIfInterrupted();
    return call;
  }
  struct StartedPush {
    std::shared_ptr<Call> call;
    bool started;  // false: the call has ended with the error, and no server has seen the push
  };
  StartedPush StartPush(ConnectionInUse* connection, uint64_t step, std::vector<ps::PushPart> parts,
                        const ps::PushOptions& options, InlineWait* wait = nullptr) {
    auto call = std::make_shared<Call>(std::vector<nb::object>(), released_);
    bool started;
    {
      nb::gil_scoped_release release;
      started = connection->client()->StartPush(step, std::move(parts), options,
                                                [under_way = connection->TakeCall(), call](absl::Status status) {
                                                  Finish(call.get(), std::move(status));
                                                }) != nullptr;
      if (wait != nullptr) wait->Poll(*call);
    }
    if (!started) RaiseIfInterrupted();
    return {call, started};
  }
  std::shared_ptr<Call> StartLookup(ConnectionInUse* connection, uint64_t step, bool read_only,
                                    std::shared_ptr<BatchLookup> lookup, InlineWait* wait = nullptr) {
    auto call = std::make_shared<Call>(std::vector<nb::object>(), released_);
    {
      nb::gil_scoped_release release;
      std::vector<ps::PullPart> parts = lookup->PullParts();
      connection->client()->PullAsync(step, read_only, std::move(parts),
                                      [under_way = connection->TakeCall(), call, lookup = std::move(lookup)](
                                          absl::StatusOr<ps::PullVersions> versions) {
                                        if (versions.ok()) lookup->SetVersions(*std::move(versions));
                                        Finish(call.get(), versions.status());
                                      });
      if (wait != nullptr) wait->Poll(*call);
    }
    RaiseIfInterrupted();
    return call;
  }
  // Ends a call that has no versions to return.
  static void Finish(Call* call, absl::Status status) {
    call->Finish(status.ok() ? absl::StatusOr<ps::PullVersions>(ps::PullVersions()) : std::move(status));
  }

  const uint64_t made_ = ForkGeneration();
  const int rank_;
  const int world_size_;
  const int num_servers_;
  std::shared_ptr<Connection> connection_;  // null: closed
  const std::shared_ptr<ReleasedObjects> released_;
  uint64_t next_pull_ = 0;
  std::unordered_map<std::string, std::pair<uint64_t, nb::tuple>> pulled_;
};

ConnectionOptions OptionsOf(double timeout_s, double checkpoint_timeout_s, uint64_t max_bytes_in_flight) {
  return {.timeout = absl::Seconds(timeout_s),
          .checkpoint_timeout = absl::Seconds(checkpoint_timeout_s),
          .max_bytes_in_flight = max_bytes_in_flight,
          .go_on_waiting = HandleSignals};
}

// `function` must own what it uses.
template <typename Function>
std::unique_ptr<PyClient> Connect(Function function) {
  return std::make_unique<PyClient>(ValueOrRaise(OnHelperThread(std::move(function))));
}

// Raises in a forked child.
const Call& Checked(const Call& call) {
  RaiseIfError(call.CheckProcess());
  return call;
}

}  // namespace

void BindClient(nb::module_& module) {
  module.def("address", [](const nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>& array) {
    return reinterpret_cast<uint64_t>(array.data());
  });
  module.def("check_ids", &CheckIds);
  module.def("parse_update_mode",
             [](const std::string& text) { return ToJson(ValueOrRaise(ps::ParseUpdateMode(text))); });
  nb::class_<Call>(module, "Call")
      .def("done", [](const Call& call) { return Checked(call).finished(); })
      .def("wait",
           [](const Call& call, double timeout_s) {
             return WaitInSlices(timeout_s, [&checked = Checked(call)](double seconds) { return checked.WaitFor(seconds); });
           })
      .def("result", [](const Call& call) { return ToPython(ValueOrRaise(Checked(call).result())); })
      .def("when_finished", [](Call& call, std::shared_ptr<FinishedCalls> queue, uint64_t number) {
        Checked(call);
        call.WhenFinished([queue = std::move(queue), number] { queue->Add(number); });
      });
  nb::class_<FinishedCalls>(module, "FinishedCalls")
      .def("__init__", [](nb::pointer_and_handle<FinishedCalls> self) { new (self.p) FinishedCalls; })
      .def("take",
           [](FinishedCalls& calls) {
             nb::gil_scoped_release release;
             return calls.Take();
           })
      .def("close", &FinishedCalls::Close);
  nb::class_<PyClient>(module, "Client")
      .def("close", &PyClient::Close)
      .def_prop_ro("closed", &PyClient::closed)
      .def_prop_ro("rank", &PyClient::rank)
      .def_prop_ro("world_size", &PyClient::world_size)
      .def_prop_ro("num_servers", &PyClient::num_servers)
      .def_prop_ro("addresses", &PyClient::addresses)
      .def("pull", &PyClient::Pull)
      .def("pull_rows", &PyClient::PullRows)
      .def("next_pull", &PyClient::NextPull)
      .def("set_pulled", &PyClient::SetPulled)
      .def("pulled", &PyClient::Pulled)
      .def("start_pull", nb::overload_cast<uint64_t, bool, nb::list, nb::object>(&PyClient::StartPull))
      .def("push", &PyClient::Push)
      .def("start_push", nb::overload_cast<uint64_t, nb::list, float, float>(&PyClient::StartPush))
      .def("create_table", &PyClient::CreateTable)
      .def("set_update_mode", &PyClient::SetUpdateMode)
      .def("set_wire", &PyClient::SetWire)
      .def("set_cache", &PyClient::SetCache)
      .def("set_read_cache", &PyClient::SetReadCache)
      .def("clear_read_cache", &PyClient::ClearReadCache)
      .def("read_cache_statistics", &PyClient::ReadCacheStatistics)
      .def("flush", &PyClient::Flush)
      .def("push_deferred", &PyClient::PushDeferred)
      .def("list_tables", &PyClient::ListTables)
      .def("list_servers", &PyClient::ListServers)
      .def("save_checkpoint", &PyClient::SaveCheckpoint)
      .def("load_checkpoint", &PyClient::LoadCheckpoint)
      .def("start_push_epoch", &PyClient::StartPushEpoch)
      .def("write_rows", &PyClient::WriteRows)
      .def("open_table", &PyClient::OpenTable)
      .def("scan_rows", &PyClient::ScanRows)
      .def("start_lookup", nb::overload_cast<uint64_t, bool, std::shared_ptr<BatchLookup>>(&PyClient::StartLookup))
      .def("pull_lookup", &PyClient::PullLookup)
      .def("start_gradients", &PyClient::StartGradients);
  module.def(
      "connect_job",
      [](double timeout_s, double checkpoint_timeout_s, uint64_t max_bytes_in_flight) {
        return Connect([=] { return Connection::ToJob(OptionsOf(timeout_s, checkpoint_timeout_s, max_bytes_in_flight)); });
      });
  module.def("connect_servers", [](const std::vector<std::string>& addresses, std::optional<uint32_t> worker,
                                   double timeout_s, double checkpoint_timeout_s, uint64_t max_bytes_in_flight) {
    return Connect([=] {
      return Connection::ToServers(addresses, worker, OptionsOf(timeout_s, checkpoint_timeout_s, max_bytes_in_flight));
    });
  });
  module.def("connect_local", [](int servers, const std::string& spill_directory, double timeout_s,
                                 double checkpoint_timeout_s, uint64_t max_bytes_in_flight) {
    return Connect([=] {
      return Connection::ToLocalServers(servers, spill_directory,
                                        OptionsOf(timeout_s, checkpoint_timeout_s, max_bytes_in_flight));
    });
  });
}

}  // namespace tandem::python
