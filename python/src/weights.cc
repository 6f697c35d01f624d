// SPDX-License-Identifier: Apache-2.0
#include "python/src/weights.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "nanobind/ndarray.h"
#include "nanobind/stl/shared_ptr.h"
#include "nanobind/stl/string.h"
#include "nanobind/stl/tuple.h"
#include "nanobind/stl/unique_ptr.h"
#include "nanobind/stl/vector.h"
#include "python/src/config.h"
#include "python/src/engine_calls.h"
#include "python/src/helper_thread.h"
#include "python/src/replay_client.h"
#include "tandem/v1/weights.pb.h"
#include "weights/client/publisher.h"
#include "weights/client/remote_weights.h"
#include "worker/rl/actor/committed_table.h"

namespace nb = nanobind;

namespace tandem::python {
namespace {

using weights::Model;
using weights::ModelVersion;
using weights::Publisher;
using ModelPointer = std::shared_ptr<const Model>;

// A connection to a weight store. Destroyed after its publishers.
struct WeightsConnection {
  std::shared_ptr<EngineServer> server;  // null: in another process
  std::shared_ptr<rpc::Channel> channel;
  std::unique_ptr<weights::RemoteWeights> weights;
};

// A table to which a publisher commits. Thread-safe. The replay client may be closed before.
class TableOfClient : public weights::VersionReceiver {
 public:
  TableOfClient(const std::shared_ptr<ReplayConnection>& connection, std::string table)
      : connection_(connection), table_(std::move(table)) {}

  absl::StatusOr<uint64_t> Head(absl::Time deadline) override {
    const std::shared_ptr<ReplayConnection> connection = connection_.lock();
    if (connection == nullptr) return Closed();
    return rl::CommittedTable(connection->replay.get(), table_).Head(deadline);
  }
  absl::Status Commit(const ModelVersion& version, const weights::PublishInfo& info,
                      absl::Time deadline) override {
    const std::shared_ptr<ReplayConnection> connection = connection_.lock();
    if (connection == nullptr) return Closed();
    return rl::CommittedTable(connection->replay.get(), table_).Commit(version, info, deadline);
  }

 private:
  absl::Status Closed() const {
    return absl::FailedPreconditionError(absl::StrCat("the replay client of table '", table_,
                                                      "', to which this publisher commits, is closed"));
  }

  const std::weak_ptr<ReplayConnection> connection_;
  const std::string table_;
};

// A publisher with its connection. `publisher` is destroyed first.
struct ConnectedPublisher {
  std::shared_ptr<WeightsConnection> connection;
  std::unique_ptr<TableOfClient> table;  // null: it commits to none
  std::unique_ptr<Publisher> publisher;
};

// A version with its values, as Python sees it. Immutable.
class PyModel {
 public:
  explicit PyModel(ModelPointer model) : model_(std::move(model)) {}
  const weights::ModelInfo& info() const { return model_->info; }
  // Returns [(name, shape, values), ...], whose arrays are read-only and use the model's memory.
  nb::list Tensors() const {
    auto held = std::make_unique<ModelPointer>(model_);
    const nb::capsule owner(held.get(),
                            [](void* pointer) noexcept { delete static_cast<ModelPointer*>(pointer); });
    (void)held.release();
    nb::list tensors;
    const float* values = model_->data.get();
    for (const weights::TensorInfo& tensor : model_->info.tensors) {
      size_t count = 1;
      for (const int64_t d : tensor.shape) count *= static_cast<size_t>(d);
      tensors.append(
          nb::make_tuple(tensor.name, nb::tuple(nb::cast(tensor.shape)),
                         nb::cast(nb::ndarray<nb::numpy, const float, nb::ndim<1>>(values, {count}, owner))));
      values += count;
    }
    return tensors;
  }

 private:
  const ModelPointer model_;
};

// Thread-safe: calls take turns.
class PyPublisher {
 public:
  PyPublisher(std::shared_ptr<Gate> gate, std::shared_ptr<ConnectedPublisher> publisher)
      : gate_(std::move(gate)), publisher_(std::move(publisher)) {}
  ~PyPublisher() {
    GilReleased release;
    publisher_.reset();
  }

  // Tensors are (name, shape, contiguous float32 array).
  uint64_t Publish(nb::list tensors, uint64_t step, uint64_t items_consumed, bool last, double timeout_s) {
    TakenTurn turn = TakeTurn(*gate_, turn_, "publisher", timeout_s);
    std::vector<weights::NamedTensor> named;
    for (nb::handle item : tensors) {
      const auto tensor = nb::borrow<nb::tuple>(item);
      const auto values = nb::cast<nb::ndarray<const float, nb::c_contig, nb::device::cpu>>(tensor[2]);
      named.push_back({.name = nb::cast<std::string>(tensor[0]),
                       .shape = nb::cast<std::vector<int64_t>>(tensor[1]),
                       .values = {values.data(), values.size()}});
    }
    // Interrupted calls go on, so the values are copied here, with the GIL released and the arrays kept by
    // `tensors`.
    absl::StatusOr<std::shared_ptr<Model>> model;
    {
      GilReleased release;
      model = weights::MakeModel(named);
    }
    RaiseIfError(model.status());
    return ValueOrRaise(CallUntil(
        gate_, timeout_s,
        [publisher = publisher_, model = *std::move(model), turn = std::move(turn), step, items_consumed,
         last, begun = false](absl::Time deadline) mutable -> absl::StatusOr<uint64_t> {
          Publisher& p = *publisher->publisher;
          if (begun) {
            TANDEM_RETURN_IF_ERROR(p.Repeat(deadline));
            return p.version().number;
          }
          begun = true;
          return p.Publish(std::move(model), {.step = step, .items_consumed = items_consumed, .last = last},
                           deadline);
        },
        {.whole = true}));
  }
  void Repeat(double timeout_s) {
    TakenTurn turn = TakeTurn(*gate_, turn_, "publisher", timeout_s);
    RaiseIfError(CallUntil(gate_, timeout_s,
                           [publisher = publisher_, turn = std::move(turn)](absl::Time deadline) {
                             return publisher->publisher->Repeat(deadline);
                           },
                           {.whole = true}));
  }
  // Returns (epoch, number).
  std::tuple<uint64_t, uint64_t> Version() {
    const TakenTurn turn = TakeTurn(*gate_, turn_, "publisher", 60);
    const ModelVersion version = publisher_->publisher->version();
    return {version.epoch, version.number};
  }

 private:
  const std::shared_ptr<Gate> gate_;
  const std::shared_ptr<Turn> turn_ = std::make_shared<Turn>();
  std::shared_ptr<ConnectedPublisher> publisher_;
};

// Thread-safe.
class PyWeights {
 public:
  explicit PyWeights(std::unique_ptr<WeightsConnection> connection)
      : connection_(LeakAfterFork(std::move(connection))) {}
  ~PyWeights() { Close(); }

  void Close() {
    gate_->Close();
    std::shared_ptr<WeightsConnection> connection = std::exchange(connection_, nullptr);
    const std::vector<std::weak_ptr<ConnectedPublisher>> publishers = std::exchange(publishers_, {});
    GilReleased release;
    for (const std::weak_ptr<ConnectedPublisher>& one : publishers) {
      // Nothing is repaired any more.
      if (const std::shared_ptr<ConnectedPublisher> publisher = one.lock())
        publisher->publisher->EndRepairs();
    }
    connection.reset();
  }
  bool closed() const { return gate_->closed(); }

  // `replay`, which may be nullptr, is the client of the table to which the versions are committed.
  std::unique_ptr<PyPublisher> OpenPublisher(const std::string& model, const std::string& name,
                                             uint64_t after_version, PyReplayClient* replay,
                                             const std::string& table, double timeout_s) {
    auto connected = std::make_unique<ConnectedPublisher>();
    connected->connection = Use();
    if (replay != nullptr) connected->table = std::make_unique<TableOfClient>(replay->Use(), table);
    const weights::PublisherOptions options = {.model = model,
                                               .name = name,
                                               .after_version = after_version,
                                               .commit_to = connected->table.get(),
                                               // A store of this process does not start again by itself.
                                               .repair_every = connected->connection->server == nullptr
                                                                   ? weights::PublisherOptions().repair_every
                                                                   : absl::ZeroDuration()};
    connected = ValueOrRaise(CallUntil(
        gate_, timeout_s,
        [connected = std::move(connected),
         options](absl::Time deadline) mutable -> absl::StatusOr<std::unique_ptr<ConnectedPublisher>> {
          TANDEM_ASSIGN_OR_RETURN(connected->publisher,
                                  Publisher::Create(connected->connection->weights.get(), options, deadline));
          return std::move(connected);
        }));
    const std::shared_ptr<ConnectedPublisher> shared = LeakAfterFork(std::move(connected));
    std::erase_if(publishers_, [](const auto& publisher) { return publisher.expired(); });
    publishers_.push_back(shared);
    return std::make_unique<PyPublisher>(gate_, shared);
  }
  // Returns a model, or None if none is newer, or the server does not say so in time.
  nb::object Newer(const std::string& model, uint64_t epoch, uint64_t number, double timeout_s) {
    const ModelVersion than = {.epoch = epoch, .number = number};
    absl::StatusOr<ModelPointer> newer = CallUntil(
        gate_, timeout_s,
        [connection = Use(), model, than](absl::Time deadline) -> absl::StatusOr<ModelPointer> {
          TANDEM_ASSIGN_OR_RETURN(ModelPointer found, connection->weights->Newer(model, than, deadline));
          if (found == nullptr) return absl::DeadlineExceededError("");  // not yet
          return found;
        },
        // The values of a version that has been announced may take longer than the wait for it.
        {.whole = true, .grace = absl::InfiniteDuration()});
    if (absl::IsDeadlineExceeded(newer.status()) || absl::IsUnavailable(newer.status())) return nb::none();
    return nb::cast(std::make_unique<PyModel>(ValueOrRaise(std::move(newer))));
  }
  // Returns (epoch, number); epoch 0 if nothing has been published.
  std::tuple<uint64_t, uint64_t> Head(const std::string& model, double timeout_s) {
    const ModelVersion head =
        ValueOrRaise(CallUntil(gate_, timeout_s, [connection = Use(), model](absl::Time deadline) {
          return connection->weights->Head(model, deadline);
        }));
    return {head.epoch, head.number};
  }
  // Returns ListWeightsResponse as JSON.
  std::string List(double timeout_s) {
    auto response = std::make_shared<::tandem::v1::ListWeightsResponse>();
    RaiseIfError(CallUntil(gate_, timeout_s,
                           [connection = Use(), response](absl::Time deadline) {
                             response->Clear();
                             return rpc::CallProto(
                                 *connection->channel, "/tandem.v1.Weights/ListModels",
                                 ::tandem::v1::ListWeightsRequest(), response.get(),
                                 {.timeout = deadline - MonotonicNow(), .idempotent = true});
                           },
                           {.whole = true}));
    return ToJson(*response);
  }

 private:
  std::shared_ptr<WeightsConnection> Use() const {
    gate_->Check();
    return connection_;
  }

  const std::shared_ptr<Gate> gate_ = std::make_shared<Gate>("weights client");
  std::shared_ptr<WeightsConnection> connection_;
  std::vector<std::weak_ptr<ConnectedPublisher>> publishers_;
};

std::unique_ptr<PyWeights> ClientOver(std::shared_ptr<EngineServer> server,
                                      std::shared_ptr<rpc::Channel> channel, double timeout_s) {
  auto connection = std::make_unique<WeightsConnection>();
  connection->server = std::move(server);
  connection->channel = std::make_shared<StoppableChannel>(std::move(channel));
  connection->weights = std::make_unique<weights::RemoteWeights>(
      connection->channel,
      weights::RemoteWeightsOptions{.call_timeout = std::min(absl::Seconds(30), absl::Seconds(timeout_s))});
  return std::make_unique<PyWeights>(std::move(connection));
}

}  // namespace

nb::object WeightsClientOf(std::shared_ptr<EngineServer> server, double timeout_s) {
  std::shared_ptr<rpc::Channel> channel = server->Connect();
  return nb::cast(ClientOver(std::move(server), std::move(channel), timeout_s));
}

void BindWeights(nb::module_& module) {
  nb::class_<PyModel>(module, "WeightsModel")
      .def_prop_ro("name", [](const PyModel& m) { return m.info().model; })
      .def_prop_ro(
          "version",
          [](const PyModel& m) { return std::make_tuple(m.info().version.epoch, m.info().version.number); })
      .def_prop_ro("step", [](const PyModel& m) { return m.info().step; })
      .def_prop_ro("items_consumed", [](const PyModel& m) { return m.info().items_consumed; })
      .def_prop_ro("last", [](const PyModel& m) { return m.info().last; })
      .def_prop_ro("publisher", [](const PyModel& m) { return m.info().publisher; })
      .def("tensors", &PyModel::Tensors);
  nb::class_<PyPublisher>(module, "WeightsPublisher")
      .def("publish", &PyPublisher::Publish)
      .def("repeat", &PyPublisher::Repeat)
      .def("version", &PyPublisher::Version);
  nb::class_<PyWeights>(module, "WeightsClient")
      .def("close", &PyWeights::Close)
      .def_prop_ro("closed", &PyWeights::closed)
      .def("open_publisher", &PyWeights::OpenPublisher, nb::arg("model"), nb::arg("name"),
           nb::arg("after_version"), nb::arg("replay").none(), nb::arg("table"), nb::arg("timeout_s"))
      .def("newer", &PyWeights::Newer)
      .def("head", &PyWeights::Head)
      .def("list", &PyWeights::List);
  module.def("connect_weights", [](const std::string& address, double timeout_s) {
    std::shared_ptr<rpc::Channel> channel =
        ValueOrRaise(OnHelperThread([address] { return ConnectToAddress(address); }));
    return ClientOver(nullptr, std::move(channel), timeout_s);
  });
  module.def("connect_weights_in_job", [](const std::string& role, int index, double timeout_s) {
    std::shared_ptr<rpc::Channel> channel = ValueOrRaise(OnHelperThread(
        [role, index, timeout_s] { return ConnectInJob(role, index, absl::Seconds(timeout_s)); }));
    return ClientOver(nullptr, std::move(channel), timeout_s);
  });
}

}  // namespace tandem::python
