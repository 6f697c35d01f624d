// SPDX-License-Identifier: Apache-2.0
#include "python/src/client.h"

#include <algorithm>
#include <memory>
#include <string>
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
uint64_t CheckIds(const nb::ndarray<nb::ndim<1>, nb::c_contig, nb::device::cpu>& ids, const std::string& table) {
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

// Blocks for a call in slices. The first slice receives responses in this thread, which saves a hand-over
// between threads; the caller has called PrepareInlinePoll.
void WaitInThisThread(ps::Client* client, const Call& call) {
  bool first = true;
  WaitInSlices(-1, [&](double seconds) {
    if (std::exchange(first, false)) {
      Clock* const clock = Clock::Real();
      const absl::Time end = clock->Now() + absl::Seconds(seconds);
      client->InlinePoll([&] { return call.finished() || clock->Now() >= end; });
      return call.finished();
    }
    return call.WaitFor(seconds);
  });
}

class PyClient {
 public:
  explicit PyClient(std::unique_ptr<Connection> connection)
      : connection_(LeakAfterFork(std::move(connection))), released_(std::make_shared<ReleasedObjects>()) {}

  // Returns the client, or raises if it was closed, if the process was forked, or if the job has failed.
  ps::Client* Use() {
    if (connection_ == nullptr) Raise(absl::CancelledError("this client is closed"));
    if (ForkGeneration() != made_) {
      Raise(absl::FailedPreconditionError("this process was forked after the client had connected, and threads do not "
                                          "survive a fork; connect again in the child"));
    }
    RaiseIfError(connection_->job_status());
    released_->Clear();
    return connection_->client();
  }

  void Close() {
    std::shared_ptr<Connection> connection = std::move(connection_);
    {
      nb::gil_scoped_release release;
      connection.reset();
    }
    if (ForkGeneration() == made_) released_->Clear();
  }
  bool closed() const { return connection_ == nullptr; }

  int rank() const { return connection_ == nullptr ? 0 : connection_->rank(); }
  int world_size() const { return connection_ == nullptr ? 1 : connection_->world_size(); }
  int num_servers() { return Use()->num_servers(); }

  std::shared_ptr<Call> StartPull(uint64_t step, bool read_only, nb::list parts, nb::object keep) {
    ps::Client* const client = Use();
    return StartPull(client, step, read_only, ParsePullParts(parts), std::move(keep));
  }
  nb::list Pull(uint64_t step, bool read_only, nb::list parts, nb::object keep) {
    ps::Client* const client = Use();
    std::vector<ps::PullPart> parsed = ParsePullParts(parts);
    client->PrepareInlinePoll();
    const std::shared_ptr<Call> call = StartPull(client, step, read_only, std::move(parsed), std::move(keep));
    WaitInThisThread(client, *call);
    return ToPython(ValueOrRaise(call->result()));
  }

  std::shared_ptr<Call> StartPush(uint64_t step, nb::list parts, float learning_rate_factor, float batch_share) {
    ps::Client* const client = Use();
    return StartPush(client, step, ParsePushParts(parts), OptionsOfPush(learning_rate_factor, batch_share));
  }
  void Push(uint64_t step, nb::list parts, float learning_rate_factor, float batch_share) {
    ps::Client* const client = Use();
    PushParts parsed = ParsePushParts(parts);
    client->PrepareInlinePoll();
    const std::shared_ptr<Call> call = StartPush(client, step, std::move(parsed), OptionsOfPush(learning_rate_factor, batch_share));
    WaitInThisThread(client, *call);
    RaiseIfError(call->result().status());
  }

  // These pull and push the embeddings of a batch (batch_lookup.h).
  std::shared_ptr<Call> StartLookup(uint64_t step, bool read_only, std::shared_ptr<BatchLookup> lookup) {
    return StartLookup(Use(), step, read_only, std::move(lookup));
  }
  void PullLookup(uint64_t step, bool read_only, std::shared_ptr<BatchLookup> lookup) {
    ps::Client* const client = Use();
    client->PrepareInlinePoll();
    const std::shared_ptr<Call> call = StartLookup(client, step, read_only, std::move(lookup));
    WaitInThisThread(client, *call);
    RaiseIfError(call->result().status());
  }
  std::shared_ptr<Call> StartGradients(uint64_t step, const std::vector<std::shared_ptr<BatchLookup>>& lookups,
                                       const std::vector<std::pair<std::string, uint32_t>>& tables,
                                       float learning_rate_factor, float batch_share) {
    ps::Client* const client = Use();
    auto call = std::make_shared<Call>(std::vector<nb::object>(), released_);
    const std::shared_ptr<Connection> connection = connection_;
    nb::gil_scoped_release release;
    GradientPush push = TakePush(lookups, tables);
    client->PushAsync(step, std::move(push.parts), OptionsOfPush(learning_rate_factor, batch_share),
                      [call](absl::Status status) { Finish(call.get(), std::move(status)); });
    return call;
  }

 private:
  // Runs a call that takes no arrays, or small ones, without the GIL. It ends by its own deadline.
  template <typename Function>
  auto Blocking(const Function& function) {
    ps::Client* const client = Use();
    const std::shared_ptr<Connection> connection = connection_;  // close() may be called meanwhile
    nb::gil_scoped_release release;
    return function(client);
  }

 public:
  void CreateTable(const std::string& json) {
    v1::TableConfig config;
    RaiseIfError(FromJson(json, &config));
    RaiseIfError(Blocking([&](ps::Client* client) { return client->CreateTable(config); }));
  }
  void SetUpdateMode(const std::string& table, const std::string& text) {
    const v1::UpdateMode mode = ValueOrRaise(ps::ParseUpdateMode(text));
    RaiseIfError(Blocking([&](ps::Client* client) { return client->SetUpdateMode(table, mode); }));
  }
  void SetWire(const std::string& table, int pull_values, int push_values) {
    const ps::WireOptions options{.pull_values = static_cast<v1::ValueFormat>(pull_values),
                                  .push_values = static_cast<v1::ValueFormat>(push_values)};
    RaiseIfError(Blocking([&](ps::Client* client) { return client->SetWire(table, options); }));
  }
  void SetCache(const std::string& table, size_t bytes, uint32_t max_uses, uint64_t max_age, uint32_t push_bound) {
    const ps::CacheOptions options{
        .bytes = bytes, .max_uses = max_uses, .max_age = max_age, .push_bound = push_bound};
    RaiseIfError(Blocking([&](ps::Client* client) { return client->SetCache(table, options); }));
  }
  void Flush(const std::string& table) {
    RaiseIfError(Blocking([&](ps::Client* client) { return client->Flush(table); }));
  }
  void PushDeferred() {
    RaiseIfError(Blocking([](ps::Client* client) { return client->PushDeferred(); }));
  }
  std::vector<std::string> ListTables(uint32_t hottest) {
    std::vector<std::string> tables;
    for (const v1::TableInfo& table :
         ValueOrRaise(Blocking([&](ps::Client* client) { return client->ListTables(hottest); }))) {
      tables.push_back(ToJson(table));
    }
    return tables;
  }
  std::vector<std::string> ListServers() {
    std::vector<std::string> servers;
    for (const v1::ServerStatistics& server :
         ValueOrRaise(Blocking([](ps::Client* client) { return client->ListServers(); }))) {
      servers.push_back(ToJson(server));
    }
    return servers;
  }
  void PullDense(const std::string& table, uint64_t step, uint64_t address, size_t count) {
    RaiseIfError(Blocking([&](ps::Client* client) {
      return client->PullDense(table, step, absl::MakeSpan(reinterpret_cast<float*>(address), count));
    }));
  }
  void PushDense(const std::string& table, uint64_t step, uint64_t address, size_t count) {
    RaiseIfError(Blocking([&](ps::Client* client) {
      return client->PushDense(table, step, absl::MakeConstSpan(reinterpret_cast<const float*>(address), count));
    }));
  }
  std::vector<std::string> SaveCheckpoint(const std::string& directory) {
    std::vector<std::string> files;
    for (const v1::SavedFile& file :
         ValueOrRaise(Blocking([&](ps::Client* client) { return client->SaveCheckpoint(directory); }))) {
      files.push_back(ToJson(file));
    }
    return files;
  }
  void LoadCheckpoint(const std::string& directory) {
    RaiseIfError(Blocking([&](ps::Client* client) { return client->LoadCheckpoint(directory); }));
  }
  void StartPushEpoch() {
    RaiseIfError(Blocking([](ps::Client* client) { return client->StartPushEpoch(); }));
  }
  // Writes the rows at `rows`, [count x dim]; the optimizer's state of each begins anew.
  void WriteRows(const std::string& config_json, uint64_t ids, size_t count, uint64_t rows) {
    v1::TableConfig config;
    RaiseIfError(FromJson(config_json, &config));
    const std::unique_ptr<ps::Optimizer> optimizer = ValueOrRaise(ps::MakeOptimizer(config.optimizer()));
    RaiseIfError(Blocking([&](ps::Client* client) {
      ps::RowStates states{.dim = config.dim(),
                           .state_floats = static_cast<uint32_t>(optimizer->state_floats(config.dim()))};
      states.values.resize(count * states.row_floats());
      const auto* const weights = reinterpret_cast<const float*>(rows);
      for (size_t i = 0; i < count; ++i) {
        float* const row = states.row(i);
        std::copy_n(weights + i * states.dim, states.dim, row);
        optimizer->InitState(row, row + states.dim, states.dim);
      }
      return client->WriteRowStates(config.name(), {reinterpret_cast<const uint64_t*>(ids), count}, states);
    }));
  }

 private:
  static ps::PushOptions OptionsOfPush(float learning_rate_factor, float batch_share) {
    return {.learning_rate_factor = learning_rate_factor, .batch_share = batch_share};
  }

  std::shared_ptr<Call> StartPull(ps::Client* client, uint64_t step, bool read_only, std::vector<ps::PullPart> parts,
                                  nb::object keep) {
    std::vector<nb::object> kept;
    kept.push_back(std::move(keep));
    auto call = std::make_shared<Call>(std::move(kept), released_);
    const std::shared_ptr<Connection> connection = connection_;
    nb::gil_scoped_release release;
    client->PullAsync(step, read_only, std::move(parts),
                      [call](absl::StatusOr<ps::PullVersions> versions) { call->Finish(std::move(versions)); });
    return call;
  }
  std::shared_ptr<Call> StartPush(ps::Client* client, uint64_t step, PushParts parsed, const ps::PushOptions& options) {
    auto call = std::make_shared<Call>(std::vector<nb::object>(), released_);
    const std::shared_ptr<Connection> connection = connection_;
    nb::gil_scoped_release release;
    client->PushAsync(step, std::move(parsed.parts), options,
                      [call](absl::Status status) { Finish(call.get(), std::move(status)); });
    return call;
  }
  std::shared_ptr<Call> StartLookup(ps::Client* client, uint64_t step, bool read_only,
                                    std::shared_ptr<BatchLookup> lookup) {
    auto call = std::make_shared<Call>(std::vector<nb::object>(), released_);
    const std::shared_ptr<Connection> connection = connection_;
    nb::gil_scoped_release release;
    std::vector<ps::PullPart> parts = lookup->PullParts();
    client->PullAsync(step, read_only, std::move(parts),
                      [call, lookup = std::move(lookup)](absl::StatusOr<ps::PullVersions> versions) {
                        if (versions.ok()) lookup->SetVersions(*std::move(versions));
                        Finish(call.get(), versions.status());
                      });
    return call;
  }
  // Ends a call that has no versions to return.
  static void Finish(Call* call, absl::Status status) {
    call->Finish(status.ok() ? absl::StatusOr<ps::PullVersions>(ps::PullVersions()) : std::move(status));
  }

  const uint64_t made_ = ForkGeneration();
  std::shared_ptr<Connection> connection_;  // null: closed
  const std::shared_ptr<ReleasedObjects> released_;
};

ConnectionOptions OptionsOf(double timeout_s, double checkpoint_timeout_s, uint64_t max_bytes_in_flight) {
  return {.timeout = absl::Seconds(timeout_s),
          .checkpoint_timeout = absl::Seconds(checkpoint_timeout_s),
          .max_bytes_in_flight = max_bytes_in_flight};
}

template <typename Function>
std::unique_ptr<PyClient> Connect(const Function& function) {
  absl::StatusOr<std::unique_ptr<Connection>> connection = absl::UnknownError("");
  {
    nb::gil_scoped_release release;
    connection = function();
  }
  return std::make_unique<PyClient>(ValueOrRaise(std::move(connection)));
}

}  // namespace

void BindClient(nb::module_& module) {
  module.def("address", [](const nb::ndarray<nb::c_contig, nb::device::cpu>& array) {
    return reinterpret_cast<uint64_t>(array.data());
  });
  module.def("check_ids", &CheckIds);
  module.def("parse_update_mode",
             [](const std::string& text) { return ToJson(ValueOrRaise(ps::ParseUpdateMode(text))); });
  nb::class_<Call>(module, "Call")
      .def("done", &Call::finished)
      .def("wait",
           [](const Call& call, double timeout_s) {
             return WaitInSlices(timeout_s, [&](double seconds) { return call.WaitFor(seconds); });
           })
      .def("result", [](const Call& call) { return ToPython(ValueOrRaise(call.result())); })
      .def("when_finished", [](Call& call, std::shared_ptr<FinishedCalls> queue, uint64_t number) {
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
      .def("pull", &PyClient::Pull)
      .def("start_pull", nb::overload_cast<uint64_t, bool, nb::list, nb::object>(&PyClient::StartPull))
      .def("push", &PyClient::Push)
      .def("start_push", nb::overload_cast<uint64_t, nb::list, float, float>(&PyClient::StartPush))
      .def("create_table", &PyClient::CreateTable)
      .def("set_update_mode", &PyClient::SetUpdateMode)
      .def("set_wire", &PyClient::SetWire)
      .def("set_cache", &PyClient::SetCache)
      .def("flush", &PyClient::Flush)
      .def("push_deferred", &PyClient::PushDeferred)
      .def("list_tables", &PyClient::ListTables)
      .def("list_servers", &PyClient::ListServers)
      .def("pull_dense", &PyClient::PullDense)
      .def("push_dense", &PyClient::PushDense)
      .def("save_checkpoint", &PyClient::SaveCheckpoint)
      .def("load_checkpoint", &PyClient::LoadCheckpoint)
      .def("start_push_epoch", &PyClient::StartPushEpoch)
      .def("write_rows", &PyClient::WriteRows)
      .def("start_lookup", nb::overload_cast<uint64_t, bool, std::shared_ptr<BatchLookup>>(&PyClient::StartLookup))
      .def("pull_lookup", &PyClient::PullLookup)
      .def("start_gradients", &PyClient::StartGradients);
  module.def(
      "connect_job",
      [](double timeout_s, double checkpoint_timeout_s, uint64_t max_bytes_in_flight) {
        return Connect([&] { return Connection::ToJob(OptionsOf(timeout_s, checkpoint_timeout_s, max_bytes_in_flight)); });
      });
  module.def("connect_servers", [](const std::vector<std::string>& addresses, uint32_t worker, bool read_only,
                                   double timeout_s, double checkpoint_timeout_s, uint64_t max_bytes_in_flight) {
    return Connect([&] {
      return Connection::ToServers(addresses, worker, read_only,
                                   OptionsOf(timeout_s, checkpoint_timeout_s, max_bytes_in_flight));
    });
  });
  module.def("connect_local", [](int servers, const std::string& spill_directory, double timeout_s,
                                 double checkpoint_timeout_s, uint64_t max_bytes_in_flight) {
    return Connect([&] {
      return Connection::ToLocalServers(servers, spill_directory,
                                        OptionsOf(timeout_s, checkpoint_timeout_s, max_bytes_in_flight));
    });
  });
}

}  // namespace tandem::python
