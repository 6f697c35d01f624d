// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_PS_SERVER_DURABLE_SHARD_H_
#define TANDEM_TESTS_PS_SERVER_DURABLE_SHARD_H_

// A durable server that tests kill.

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tandem/v1/durability.pb.h"
#include "tests/ps/log/fake_file_system.h"
#include "tests/ps/server/count_pushes.h"
#include "tests/ps/server/driver.h"
#include "tests/testing/status_matchers.h"

namespace tandem::ps::testing {

// A server that can be killed at any moment. Its disk is a FakeFileSystem.
class Shard {
 public:
  explicit Shard(std::function<void(ParameterServerOptions*)> change = nullptr)
      : change_(std::move(change)) {}

  absl::Status Start() {
    ParameterServerOptions options;
    options.durability = {.directory = "/shard",
                          .segment_bytes = 4096,
                          .files = &files_,
                          .boot_id = absl::StrCat("boot ", boots_)};
    if (change_) change_(&options);
    driver_ = std::make_unique<Driver>(options);
    const absl::Status recovered = driver_->server().Recover();
    if (!recovered.ok()) driver_.reset();
    return recovered;
  }
  // kill -9.
  void Kill() {
    files_.CutAfter(0);
    driver_.reset();
    files_.LoseProcess();
  }
  void LosePower(uint64_t seed) {
    files_.CutAfter(0);
    driver_.reset();
    files_.LosePower(seed);
    ++boots_;
  }
  Driver* operator->() { return driver_.get(); }
  FakeFileSystem& files() { return files_; }

  v1::DurabilityInfo Info() {
    rpc::Service service = driver_->server().durability_service();
    auto call = std::make_shared<TestCall>(Bytes(v1::GetDurabilityRequest().SerializeAsString()),
                                           absl::InfiniteFuture());
    service.methods[0].handler(call);
    v1::DurabilityInfo info;
    TANDEM_CHECK(info.ParseFromString(call->Wait()->Flatten()));
    return info;
  }
  // Waits until a snapshot more has been taken.
  void AwaitSnapshot(uint64_t before) {
    const absl::Time deadline = absl::Now() + absl::Minutes(1);
    while (Info().snapshots() <= before) {
      TANDEM_CHECK_MSG(absl::Now() < deadline, Info().ShortDebugString());
      std::this_thread::yield();
    }
  }

 private:
  const std::function<void(ParameterServerOptions*)> change_;
  FakeFileSystem files_;
  int boots_ = 0;
  std::unique_ptr<Driver> driver_;
};

inline float ValueOf(Shard& shard, uint64_t id, uint64_t step = 0) {
  return CountOf(*shard.operator->(), id, "user", step);
}

}  // namespace tandem::ps::testing

#endif  // TANDEM_TESTS_PS_SERVER_DURABLE_SHARD_H_
