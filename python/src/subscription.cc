// SPDX-License-Identifier: Apache-2.0
#include "python/src/subscription.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/status.h"
#include "nanobind/ndarray.h"
#include "nanobind/stl/string.h"
#include "nanobind/stl/vector.h"
#include "ps/client/route/connect_shard.h"
#include "ps/subscription/directory_follower.h"
#include "ps/subscription/subscription.h"
#include "python/src/errors.h"
#include "python/src/process.h"

namespace nb = nanobind;

namespace tandem::python {
namespace {

// Returns (table, bucket, whole, removed, ids, rows), whose arrays own the memory.
nb::tuple ToPython(ps::RowChanges changes) {
  auto held = std::make_unique<ps::RowChanges>(std::move(changes));
  ps::RowChanges& one = *held;
  const nb::capsule owner(held.get(),
                          [](void* pointer) noexcept { delete static_cast<ps::RowChanges*>(pointer); });
  (void)held.release();
  return nb::make_tuple(one.table, one.bucket, one.whole,
                        nb::ndarray<nb::numpy, uint64_t>(one.removed.data(), {one.removed.size()}, owner),
                        nb::ndarray<nb::numpy, uint64_t>(one.ids.data(), {one.ids.size()}, owner),
                        nb::ndarray<nb::numpy, float>(one.rows.data(), {one.ids.size(), one.dim}, owner));
}

nb::list ToPython(std::vector<ps::RowChanges> changes) {
  nb::list list;
  for (ps::RowChanges& one : changes) list.append(ToPython(std::move(one)));
  return list;
}

// Calls of several threads take turns.
class PySubscription {
 public:
  PySubscription(const std::vector<std::string>& servers, std::vector<std::string> tables, nb::bytes position,
                 double interval_s, double timeout_s) {
    ps::SubscriptionOptions options{.tables = std::move(tables),
                                    .position = std::string(position.c_str(), position.size()),
                                    .interval = absl::Seconds(interval_s),
                                    .timeout = absl::Seconds(timeout_s)};
    subscription_ = ValueOrRaise(Open(servers, options));
  }
  ~PySubscription() {
    GilReleased release;
    subscription_.reset();
  }

  // Returns None if nothing has changed for `wait_s`, else (server, complete, changes, position, caught up).
  nb::object Next(double wait_s) {
    absl::StatusOr<ps::ChangeBatch> batch;
    std::string position;
    bool caught_up = false;
    {
      GilReleased release;
      absl::MutexLock turn(&turn_);
      batch = subscription_->Next(absl::Seconds(wait_s));
      position = subscription_->position();
      caught_up = subscription_->caught_up();
    }
    if (absl::IsDeadlineExceeded(batch.status())) return nb::none();
    RaiseIfError(batch.status());
    return nb::make_tuple(batch->server, batch->complete, ToPython(std::move(batch->changes)),
                          nb::bytes(position.data(), position.size()), caught_up);
  }
  void Cancel() { subscription_->Cancel(); }

 private:
  static absl::StatusOr<std::unique_ptr<ps::Subscription>> Open(const std::vector<std::string>& servers,
                                                                const ps::SubscriptionOptions& options) {
    GilReleased release;
    std::vector<std::unique_ptr<rpc::Channel>> channels;
    for (const std::string& address : servers) {
      TANDEM_ASSIGN_OR_RETURN(ps::ShardConnection shard,
                              ps::ConnectShard({.shard = static_cast<uint32_t>(channels.size()),
                                                .address = address,
                                                .timeout = options.timeout}));
      channels.push_back(std::move(shard.channel));
    }
    return ps::Subscription::Open(std::move(channels), options);
  }

  absl::Mutex turn_;
  std::unique_ptr<ps::Subscription> subscription_;
};

class PyDirectoryFollower {
 public:
  explicit PyDirectoryFollower(const std::string& root) : follower_(root) {}

  // Returns None if there is no newer checkpoint, else (step, changes).
  nb::object Next() {
    std::vector<ps::RowChanges> changes;
    absl::StatusOr<bool> more;
    uint64_t step = 0;
    {
      GilReleased release;
      absl::MutexLock turn(&turn_);
      more = follower_.Next(
          [&](const ps::v1::TableConfig&, const ps::RowChanges& one) { changes.push_back(one); });
      step = follower_.step();
    }
    if (!ValueOrRaise(std::move(more))) return nb::none();
    return nb::make_tuple(step, ToPython(std::move(changes)));
  }

 private:
  absl::Mutex turn_;
  ps::DirectoryFollower follower_;
};

}  // namespace

void BindSubscription(nb::module_& module) {
  nb::class_<PySubscription>(module, "Subscription")
      .def(nb::init<const std::vector<std::string>&, std::vector<std::string>, nb::bytes, double, double>())
      .def("next", &PySubscription::Next)
      .def("cancel", &PySubscription::Cancel);
  nb::class_<PyDirectoryFollower>(module, "DirectoryFollower")
      .def(nb::init<const std::string&>())
      .def("next", &PyDirectoryFollower::Next);
}

}  // namespace tandem::python
