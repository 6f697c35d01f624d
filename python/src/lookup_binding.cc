// SPDX-License-Identifier: Apache-2.0
#include "python/src/lookup_binding.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "nanobind/ndarray.h"
#include "nanobind/stl/pair.h"
#include "nanobind/stl/shared_ptr.h"
#include "nanobind/stl/string.h"
#include "nanobind/stl/vector.h"
#include "python/src/batch_lookup.h"
#include "python/src/errors.h"
#include "python/src/process.h"

namespace nb = nanobind;

namespace tandem::python {
namespace {

// The ids of a batch. The arrays are those of Python, which keeps them alive while it uses the request.
struct LookupRequest {
  std::shared_ptr<const LookupPlan> plan;
  std::vector<FeatureIds> features;
};

// Lookups that are used again when nothing refers to them any more, so that a training loop allocates none.
// Used with the GIL.
class LookupPool {
 public:
  std::shared_ptr<BatchLookup> Take(const std::shared_ptr<const LookupPlan>& plan) {
    for (const std::shared_ptr<BatchLookup>& lookup : lookups_) {
      if (lookup.use_count() > 1) continue;
      // The last other owner, perhaps an RPC thread, has finished with it.
      std::atomic_thread_fence(std::memory_order_acquire);
      return lookup;
    }
    auto lookup = std::make_shared<BatchLookup>(plan);
    if (lookups_.size() < kKept) lookups_.push_back(lookup);
    return lookup;
  }

 private:
  static constexpr size_t kKept = 16;
  std::vector<std::shared_ptr<BatchLookup>> lookups_;
};

template <typename T>
T* At(nb::handle address) {
  return reinterpret_cast<T*>(nb::cast<uint64_t>(address));
}
template <typename T>
std::vector<T*> Addresses(const std::vector<uint64_t>& addresses) {
  std::vector<T*> pointers;
  pointers.reserve(addresses.size());
  for (const uint64_t address : addresses) pointers.push_back(reinterpret_cast<T*>(address));
  return pointers;
}

// Parses [(table, dim, [(feature, pooling, padding), ...], negative ids), ...].
std::shared_ptr<LookupPlan> MakePlan(nb::list tables) {
  auto plan = std::make_shared<LookupPlan>();
  for (nb::handle item : tables) {
    const nb::tuple table = nb::borrow<nb::tuple>(item);
    LookupTable& to = plan->tables.emplace_back();
    to.name = nb::cast<std::string>(table[0]);
    to.dim = nb::cast<uint32_t>(table[1]);
    to.negative_ids = nb::cast<bool>(table[3]);
    for (nb::handle feature_item : nb::borrow<nb::list>(table[2])) {
      const nb::tuple feature = nb::borrow<nb::tuple>(feature_item);
      to.features.push_back({.name = nb::cast<std::string>(feature[0]),
                             .pooling = static_cast<v1::Pooling>(nb::cast<int>(feature[1])),
                             .padding = nb::cast<int64_t>(feature[2])});
    }
  }
  return plan;
}

// Parses [(ids, num ids, bags, length, offsets, num offsets, base, ends are given, weights), ...].
LookupRequest MakeRequest(std::shared_ptr<LookupPlan> plan, nb::list features) {
  LookupRequest request{.plan = std::move(plan)};
  request.features.reserve(nb::len(features));
  for (nb::handle item : features) {
    const nb::tuple feature = nb::borrow<nb::tuple>(item);
    request.features.push_back({.ids = {At<const int64_t>(feature[0]), nb::cast<size_t>(feature[1])},
                                .offsets = At<const int64_t>(feature[4]),
                                .num_offsets = nb::cast<size_t>(feature[5]),
                                .base = nb::cast<int64_t>(feature[6]),
                                .ends_are_given = nb::cast<bool>(feature[7]),
                                .bags = nb::cast<size_t>(feature[2]),
                                .length = nb::cast<size_t>(feature[3]),
                                .weights = At<const float>(feature[8])});
  }
  return request;
}

}  // namespace

void BindLookup(nb::module_& module) {
  nb::class_<LookupPlan>(module, "LookupPlan");
  module.def("make_lookup_plan", &MakePlan);
  nb::class_<LookupRequest>(module, "LookupRequest").def("key", [](const LookupRequest& request) {
    std::string key;
    {
      GilReleased release;
      key = ContentKey(*request.plan, request.features);
    }
    return nb::bytes(key.data(), key.size());
  });
  module.def("make_lookup_request", &MakeRequest);
  nb::class_<BatchLookup>(module, "Lookup", nb::is_weak_referenceable())
      .def("prepare",
           [](BatchLookup& lookup, const LookupRequest& request) {
             absl::Status status;
             {
               GilReleased release;
               status = lookup.Prepare(request.features);
             }
             RaiseIfError(status);
           })
      .def("output_rows", &BatchLookup::OutputRows)
      // Outputs and gradients are (address, stride).
      .def("gather",
           [](const BatchLookup& lookup, const std::vector<std::pair<uint64_t, size_t>>& outputs) {
             std::vector<BatchLookup::OutputArray> to;
             to.reserve(outputs.size());
             for (const auto& [address, stride] : outputs)
               to.push_back({reinterpret_cast<float*>(address), stride});
             GilReleased release;
             lookup.Gather(to);
           })
      .def("scatter",
           [](BatchLookup& lookup, const std::vector<std::pair<uint64_t, size_t>>& gradients, float scale,
              const std::vector<uint64_t>& weight_gradients, const std::vector<bool>& trains) {
             std::vector<BatchLookup::OutputGradients> from;
             from.reserve(gradients.size());
             for (const auto& [address, stride] : gradients)
               from.push_back({reinterpret_cast<const float*>(address), stride});
             const std::vector<float*> to = Addresses<float>(weight_gradients);
             GilReleased release;
             lookup.Scatter(from, scale, to, trains);
           })
      .def("has_gradients", [](const BatchLookup& lookup) { return lookup.HasGradients(); })
      .def("has_gradients_of",
           [](const BatchLookup& lookup, const std::string& table) { return lookup.HasGradients(table); })
      .def("drop_gradients", [](BatchLookup& lookup) { lookup.DropGradients(); })
      .def("drop_gradients_of",
           [](BatchLookup& lookup, const std::string& table) { lookup.DropGradients(table); })
      .def_prop_ro("num_ids", &BatchLookup::num_ids)
      .def_prop_ro("bytes", &BatchLookup::bytes)
      .def_prop_ro("num_unique", &BatchLookup::num_unique);
  nb::class_<TableGradients>(module, "TableGradients")
      .def_prop_ro("count", [](const TableGradients& gradients) { return gradients.ids.size(); })
      // The arrays are views of the object's memory, and keep it alive.
      .def("ids",
           [](nb::handle self) {
             const auto& gradients = nb::cast<const TableGradients&>(self);
             return nb::ndarray<nb::numpy, const uint64_t, nb::ndim<1>>(gradients.ids.data(),
                                                                        {gradients.ids.size()}, self);
           })
      .def("rows", [](nb::handle self) {
        const auto& gradients = nb::cast<const TableGradients&>(self);
        return nb::ndarray<nb::numpy, float, nb::ndim<1>>(gradients.rows->data(), {gradients.rows->size()},
                                                          self);
      });
  module.def(
      "take_gradients",
      [](const std::string& table, uint32_t dim, const std::vector<std::shared_ptr<BatchLookup>>& lookups,
         std::shared_ptr<TableGradients> earlier) {
        GilReleased release;
        return TakeGradients(table, dim, lookups, std::move(earlier));
      },
      nb::arg(), nb::arg(), nb::arg(), nb::arg().none());
  nb::class_<PushSource>(module, "PushSource")
      .def("__init__", [](nb::pointer_and_handle<PushSource> self, std::string table, uint32_t dim,
                          float factor, std::vector<std::shared_ptr<BatchLookup>> lookups,
                          std::vector<std::shared_ptr<TableGradients>> gathered) {
        new (self.p) PushSource{std::move(table), dim, factor, std::move(lookups), std::move(gathered)};
      });
  nb::class_<LookupPool>(module, "LookupPool")
      .def("__init__", [](nb::pointer_and_handle<LookupPool> self) { new (self.p) LookupPool; })
      .def("take", [](LookupPool& pool, std::shared_ptr<LookupPlan> plan) { return pool.Take(plan); });
}

}  // namespace tandem::python
