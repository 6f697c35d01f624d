// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_CLUSTER_STORE_KILLED_STORE_H_
#define TANDEM_TESTS_CLUSTER_STORE_KILLED_STORE_H_

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/read_file.h"
#include "base/status.h"
#include "tests/testing/processes/processes.h"
#include "tests/testing/processes/self_process.h"

namespace tandem::cluster {

// A store on a disk, served by a process of its own (KilledStoreChild in killed_store.cc) at one address.
class KilledStore {
 public:
  explicit KilledStore(std::string directory) : directory_(std::move(directory)) {
    std::filesystem::create_directory(directory_);
    Start();
  }
  const std::string& address() const { return address_; }
  void Kill() { server_->Kill(); }
  // Blocks until the new process serves.
  void Start() {
    std::filesystem::remove(directory_ + "/port");
    server_ = std::make_unique<testing::SelfProcess>(
        "KilledStoreChild.DISABLED_Serves",
        std::map<std::string, std::string>{{"TANDEM_TEST_STORE", directory_}, {"TANDEM_TEST_PORT", port_}});
    const absl::Time deadline = MonotonicNow() + testing::kTestTimeout;
    while (!std::filesystem::exists(directory_ + "/port")) {
      TANDEM_CHECK_MSG(MonotonicNow() < deadline, "the server does not start");
      std::this_thread::yield();
    }
    port_ = ReadFile(directory_ + "/port").value();
    address_ = absl::StrCat("127.0.0.91:", port_);
  }
  void KillAndRestart() {
    Kill();
    Start();
  }

 private:
  const std::string directory_;
  std::string port_ = "0", address_;
  std::unique_ptr<testing::SelfProcess> server_;
};

}  // namespace tandem::cluster

#endif  // TANDEM_TESTS_CLUSTER_STORE_KILLED_STORE_H_
