// SPDX-License-Identifier: Apache-2.0
#include "python/src/client.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "nanobind/ndarray.h"
#include "nanobind/stl/optional.h"
#include "nanobind/stl/pair.h"
#include "nanobind/stl/shared_ptr.h"
#include "nanobind/stl/string.h"
#include "nanobind/stl/unique_ptr.h"
#include "nanobind/stl/vector.h"
#include "ps/table.h"
#include "python/src/client_parts.h"
#include "python/src/config.h"
#include "python/src/errors.h"
#include "python/src/helper_thread.h"
#include "python/src/py_client.h"

namespace nb = nanobind;

namespace tandem::python {
namespace {

// Returns the address of int64 or uint64 ids. Raises if a signed one is negative.
uint64_t CheckIds(const nb::ndarray<nb::ro, nb::ndim<1>, nb::c_contig, nb::device::cpu>& ids,
                  const std::string& table) {
  if (ids.dtype() == nb::dtype<int64_t>()) {
    const auto* values = static_cast<const int64_t*>(ids.data());
    int64_t signs = 0;
    for (size_t i = 0; i < ids.size(); ++i) signs |= values[i];
    if (signs < 0) {
      Raise(absl::InvalidArgumentError(absl::StrCat(
          "the ids of table '", table, "' contain ", *std::min_element(values, values + ids.size()),
          "; ids must not be negative. To use the bits of 64-bit hashes, pass "
          "ids.view(np.uint64), or ids.view(torch.uint64)")));
    }
  }
  return reinterpret_cast<uint64_t>(ids.data());
}

ConnectionOptions OptionsOf(double timeout_s, double checkpoint_timeout_s, uint64_t max_bytes_in_flight,
                            uint64_t pinned_bytes, double max_lag_s = 0) {
  return {.timeout = absl::Seconds(timeout_s),
          .checkpoint_timeout = absl::Seconds(checkpoint_timeout_s),
          .max_bytes_in_flight = max_bytes_in_flight,
          .max_lag = absl::Seconds(max_lag_s),
          .go_on_waiting = HandleSignals,
          .pinned_bytes = pinned_bytes};
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
  module.def("gpu_of", &GpuOf);
  module.def("parse_update_mode",
             [](const std::string& text) { return ToJson(ValueOrRaise(ps::ParseUpdateMode(text))); });
  nb::class_<Call>(module, "Call")
      .def("done", [](const Call& call) { return Checked(call).finished(); })
      .def("wait",
           [](const Call& call, double timeout_s) {
             return WaitInSlices(
                 timeout_s, [&checked = Checked(call)](double seconds) { return checked.WaitFor(seconds); });
           })
      .def("result", [](const Call& call) { return ToPython(ValueOrRaise(Checked(call).result())); })
      .def("when_finished", [](Call& call, std::shared_ptr<FinishedCalls> queue, uint64_t number) {
        Checked(call);
        call.WhenFinished([queue = std::move(queue), number] { queue->Add(number); });
      });
  nb::class_<FinishedCalls>(module, "FinishedCalls")
      .def(nb::new_([] { return std::make_shared<FinishedCalls>(); }))
      .def("take",
           [](FinishedCalls& calls) {
             GilReleased release;
             return calls.Take();
           })
      .def("add", &FinishedCalls::Add)
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
      .def("drop_table", &PyClient::DropTable)
      .def("set_update_mode", &PyClient::SetUpdateMode)
      .def("set_wire", &PyClient::SetWire)
      .def("set_cache", &PyClient::SetCache)
      .def("set_read_cache", &PyClient::SetReadCache)
      .def("clear_read_cache", &PyClient::ClearReadCache)
      .def("read_cache_statistics", &PyClient::ReadCacheStatistics)
      .def("follower_reads", &PyClient::FollowerReads)
      .def("flush", &PyClient::Flush)
      .def("push_deferred", &PyClient::PushDeferred)
      .def("drop_cached", &PyClient::DropCached)
      .def("list_tables", &PyClient::ListTables)
      .def("list_servers", &PyClient::ListServers)
      .def("save_checkpoint", &PyClient::SaveCheckpoint)
      .def("load_checkpoint", &PyClient::LoadCheckpoint)
      .def("start_push_epoch", &PyClient::StartPushEpoch)
      .def("write_rows", &PyClient::WriteRows)
      .def("open_table", &PyClient::OpenTable)
      .def("scan_rows", &PyClient::ScanRows)
      .def("start_lookup",
           nb::overload_cast<uint64_t, bool, std::shared_ptr<BatchLookup>>(&PyClient::StartLookup))
      .def("pull_lookup", &PyClient::PullLookup)
      .def("start_gradients", &PyClient::StartGradients);
  module.def("connect_job", [](double timeout_s, double checkpoint_timeout_s, uint64_t max_bytes_in_flight,
                               double max_lag_s, uint64_t pinned_bytes) {
    return Connect([=] {
      return Connection::ToJob(
          OptionsOf(timeout_s, checkpoint_timeout_s, max_bytes_in_flight, pinned_bytes, max_lag_s));
    });
  });
  module.def("connect_servers", [](const std::vector<std::string>& addresses, std::optional<uint32_t> worker,
                                   bool read_only, double timeout_s, double checkpoint_timeout_s,
                                   uint64_t max_bytes_in_flight, double max_lag_s, uint64_t pinned_bytes) {
    return Connect([=] {
      return Connection::ToServers(
          addresses, worker, read_only,
          OptionsOf(timeout_s, checkpoint_timeout_s, max_bytes_in_flight, pinned_bytes, max_lag_s));
    });
  });
  module.def("connect_local",
             [](int servers, const std::string& spill_directory, double timeout_s,
                double checkpoint_timeout_s, uint64_t max_bytes_in_flight, uint64_t pinned_bytes) {
               return Connect([=] {
                 return Connection::ToLocalServers(
                     servers, spill_directory,
                     OptionsOf(timeout_s, checkpoint_timeout_s, max_bytes_in_flight, pinned_bytes));
               });
             });
}

}  // namespace tandem::python
