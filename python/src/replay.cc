// SPDX-License-Identifier: Apache-2.0
#include "python/src/replay.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/numeric/dtype.h"
#include "google/protobuf/descriptor.h"
#include "nanobind/stl/optional.h"
#include "nanobind/stl/pair.h"
#include "nanobind/stl/string.h"
#include "nanobind/stl/tuple.h"
#include "nanobind/stl/unique_ptr.h"
#include "nanobind/stl/vector.h"
#include "python/src/config.h"
#include "python/src/helper_thread.h"
#include "python/src/replay_client.h"
#include "python/src/replay_sharded.h"
#include "python/src/weights.h"
#include "replay/wire/messages.h"

namespace nb = nanobind;

namespace tandem::python {
namespace {

using replay::RateLimit;
using replay::TableOptions;

std::unique_ptr<PyReplayClient> ClientOver(std::shared_ptr<EngineServer> server,
                                           std::shared_ptr<rpc::Channel> channel, const std::string& name,
                                           double timeout_s) {
  auto connection = std::make_unique<ReplayConnection>();
  connection->server = std::move(server);
  connection->channel = std::make_shared<StoppableChannel>(std::move(channel));
  connection->replay = std::make_unique<replay::RemoteReplay>(
      connection->channel,
      replay::RemoteReplayOptions{.name = name,
                                  .call_timeout = std::min(absl::Seconds(30), absl::Seconds(timeout_s)),
                                  // Arrays of Python are written to, and live long.
                                  .max_in_place_bytes = 0});
  return std::make_unique<PyReplayClient>(std::move(connection), timeout_s);
}

// The services of this process.
class PyEngineServer {
 public:
  explicit PyEngineServer(std::unique_ptr<EngineServer> server)
      : address_(server->address()), server_(LeakAfterFork(std::move(server))) {}
  ~PyEngineServer() {
    GilReleased release;
    server_.reset();
  }

  const std::string& address() const { return address_; }
  std::shared_ptr<EngineServer> Use() const {
    gate_->Check();
    return server_;
  }
  std::unique_ptr<PyReplayClient> Replay(const std::string& name, double timeout_s) const {
    std::shared_ptr<EngineServer> server = Use();
    std::shared_ptr<rpc::Channel> channel = server->Connect();
    return ClientOver(std::move(server), std::move(channel), name, timeout_s);
  }
  nb::object Weights(double timeout_s) const { return WeightsClientOf(Use(), timeout_s); }
  // Blocks until Stop, or until a signal handler raises, at most `timeout_s` (negative: no limit). Returns
  // whether it has stopped.
  bool Wait(double timeout_s) const {
    if (gate_->forked()) gate_->Check();
    const std::shared_ptr<Gate> gate = gate_;
    return WaitInSlices(timeout_s, [&](double seconds) {
      absl::MutexLock lock(&stop_mutex_);
      return AwaitFor(&stop_mutex_, absl::Condition(&stopping_), absl::Seconds(seconds));
    });
  }
  void Stop() {
    if (gate_->forked()) return;
    const std::shared_ptr<EngineServer> server = server_;
    gate_->Close();
    {
      absl::MutexLock lock(&stop_mutex_);
      stopping_ = true;
    }
    RaiseIfError(OnHelperThread([server] { return server->Stop(); }));
  }

 private:
  const std::string address_;
  const std::shared_ptr<Gate> gate_ = std::make_shared<Gate>("server");
  mutable absl::Mutex stop_mutex_;
  bool stopping_ ABSL_GUARDED_BY(stop_mutex_) = false;
  std::shared_ptr<EngineServer> server_;
};

std::unique_ptr<PyEngineServer> Serve(bool with_replay, bool with_weights,
                                      const std::vector<std::string>& tables, const std::string& listen,
                                      const std::string& advertise, bool in_job, uint64_t max_memory,
                                      uint64_t max_parked, const std::string& checkpoint_directory,
                                      double checkpoint_seconds, uint32_t keep, uint64_t max_weight_bytes,
                                      double timeout_s) {
  EngineServerOptions options{
      .replay = with_replay,
      .weights = with_weights,
      .replay_options = {.max_memory_bytes = max_memory,
                         .max_parked_bytes =
                             max_parked > 0 ? max_parked : replay::ReplayServerOptions().max_parked_bytes,
                         .checkpoint_directory = checkpoint_directory,
                         .checkpoint_every = checkpoint_seconds > 0 ? absl::Seconds(checkpoint_seconds)
                                                                    : absl::InfiniteDuration()},
      .weight_options = {.keep = keep, .max_bytes = max_weight_bytes},
      .listen = listen,
      .advertise = advertise,
      .in_job = in_job,
      .timeout = absl::Seconds(timeout_s)};
  for (const std::string& json : tables) {
    replay::v1::ReplayTableOptions& table = options.tables.emplace_back();
    RaiseIfError(FromJson(json, &table));
  }
  return std::make_unique<PyEngineServer>(
      ValueOrRaise(OnHelperThread([options = std::move(options)] { return EngineServer::Start(options); })));
}

// Returns the names of the selectors, by their numbers on the wire.
std::vector<std::string> Selectors() {
  std::vector<std::string> names;
  for (uint8_t kind = 0; replay::CheckSelector({.kind = static_cast<replay::SelectorKind>(kind)}).ok();
       ++kind) {
    names.emplace_back(replay::Name(static_cast<replay::SelectorKind>(kind)));
  }
  return names;
}

std::string Json(const TableOptions& options) { return ToJson(replay::ToProto(options)); }

std::string LimitJson(const RateLimit& limit) {
  return ToJson(replay::ToProto(TableOptions{.limit = limit}).limit());
}

// The configurations that C++ has ready, as JSON of ReplayTableOptions and ReplayLimit.
void BindPresets(nb::module_& module) {
  module.def("replay_selectors", &Selectors);
  module.def("replay_dtypes", [] {
    std::vector<std::string> names;
    for (int dtype = 0; dtype < kNumDTypes; ++dtype) names.emplace_back(Name(static_cast<DType>(dtype)));
    return names;
  });
  // The fields of a message of replay.proto, such as "ReplayTableOptions".
  module.def("replay_fields", [](const std::string& message) {
    const auto* const described =
        google::protobuf::DescriptorPool::generated_pool()->FindMessageTypeByName("tandem.v1." + message);
    std::vector<std::string> names;
    for (int i = 0; described != nullptr && i < described->field_count(); ++i)
      names.push_back(described->field(i)->name());
    return names;
  });
  module.def("replay_table", [] { return Json({}); });
  module.def("replay_queue", [](const std::string& name, uint64_t size, uint32_t times) {
    return Json(TableOptions::Queue(name, size, times));
  });
  module.def("replay_stack",
             [](const std::string& name, uint64_t size) { return Json(TableOptions::Stack(name, size)); });
  module.def("replay_uniform", [](const std::string& name, uint64_t size, uint64_t min_size) {
    return Json(TableOptions::Uniform(name, size, min_size));
  });
  module.def("replay_prioritized",
             [](const std::string& name, uint64_t size, uint64_t min_size, double exponent) {
               return Json(TableOptions::Prioritized(name, size, min_size, exponent));
             });
  module.def("replay_paced_queue", [](const std::string& name, uint32_t batch, uint32_t max_lag,
                                      uint32_t every, const std::string& slow) {
    return Json(
        TableOptions::PacedQueue(name, batch, max_lag, every, ValueOrRaise(replay::ParseSlowRollouts(slow))));
  });
  module.def("replay_min_size", [](uint64_t min_size) { return LimitJson(RateLimit::MinSize(min_size)); });
  module.def("replay_queue_limit",
             [](uint64_t size, uint32_t times) { return LimitJson(RateLimit::Queue(size, times)); });
  module.def("replay_ratio", [](double samples_per_insert, uint64_t min_size, double slack) {
    return LimitJson(RateLimit::Ratio(samples_per_insert, min_size, slack));
  });
}

}  // namespace

void BindReplay(nb::module_& module) {
  BindPresets(module);
  nb::class_<PyReplayWriter>(module, "ReplayWriter")
      .def("append", &PyReplayWriter::Append)
      .def("last", &PyReplayWriter::Last)
      .def("stack", &PyReplayWriter::Stack)
      .def("episode_steps", &PyReplayWriter::EpisodeSteps)
      .def("create_item", &PyReplayWriter::CreateItem, nb::arg("table"), nb::arg("priority").none(),
           nb::arg("columns"), nb::arg("timeout_s"))
      .def("hold", &PyReplayWriter::Hold)
      .def("flush", &PyReplayWriter::Flush)
      .def("pending_items", &PyReplayWriter::PendingItems)
      .def("dropped_items", &PyReplayWriter::DroppedItems)
      .def("close", &PyReplayWriter::Close)
      .def_prop_ro("closed", &PyReplayWriter::closed);
  nb::class_<PyReplaySampler>(module, "ReplaySampler")
      .def("next", &PyReplaySampler::Next)
      .def("close", &PyReplaySampler::Close);
  nb::class_<PyReplayClient>(module, "ReplayClient")
      .def("close", &PyReplayClient::Close)
      .def_prop_ro("closed", &PyReplayClient::closed)
      .def("create_table", &PyReplayClient::CreateTable)
      .def("open_writer", &PyReplayClient::OpenWriter)
      .def("open_sampler", &PyReplayClient::OpenSampler)
      .def("sample", &PyReplayClient::Sample)
      .def("update_priorities", &PyReplayClient::UpdatePriorities)
      .def("admit", &PyReplayClient::Admit)
      .def("renew", &PyReplayClient::Renew)
      .def("commit", &PyReplayClient::Commit)
      .def("call", &PyReplayClient::Call);
  nb::class_<PyEngineServer>(module, "EngineServer")
      .def_prop_ro("address", &PyEngineServer::address)
      .def("replay", &PyEngineServer::Replay)
      .def("weights", &PyEngineServer::Weights)
      .def("wait", &PyEngineServer::Wait)
      .def("stop", &PyEngineServer::Stop);
  module.def("serve_engines", &Serve);
  module.def("connect_replay", [](const std::string& address, const std::string& name, double timeout_s) {
    std::shared_ptr<rpc::Channel> channel =
        ValueOrRaise(OnHelperThread([address] { return ConnectToAddress(address); }));
    return ClientOver(nullptr, std::move(channel), name, timeout_s);
  });
  module.def("connect_replay_in_job",
             [](const std::string& role, int index, const std::string& name, double timeout_s) {
               std::shared_ptr<rpc::Channel> channel = ValueOrRaise(OnHelperThread(
                   [role, index, timeout_s] { return ConnectInJob(role, index, absl::Seconds(timeout_s)); }));
               return ClientOver(nullptr, std::move(channel), name, timeout_s);
             });
  BindShardedReplay(module);
}

}  // namespace tandem::python
