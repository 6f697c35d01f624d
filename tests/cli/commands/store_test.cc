// SPDX-License-Identifier: Apache-2.0
// `tandem store` as users start it, also when it is killed.

#include <signal.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cluster/store/remote_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rpc/connect.h"
#include "tests/testing/processes/tandem_process.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::cli {
namespace {

using ::tandem::testing::Finished;
using ::tandem::testing::kTestTimeout;
using ::tandem::testing::RunTandem;
using ::tandem::testing::TandemProcess;
using ::tandem::testing::TempDir;
using ::testing::AllOf;
using ::testing::HasSubstr;

// A store of the program. Started again, it serves at the same address.
class ServedStore {
 public:
  explicit ServedStore(const std::string& data) : data_(data) { Start(); }
  void Start() {
    process_ = std::make_unique<TandemProcess>(
        std::vector<std::string>{"store", "--listen", address_, "--data", data_});
    const bool up = process_->WaitForLine([this](const std::string& line) {
      address_ = line;
      return true;
    });
    TANDEM_CHECK_MSG(up, process_->err());
  }
  void Kill() {
    process_->Signal(SIGKILL);
    EXPECT_EQ(process_->Wait(), 128 + SIGKILL);
  }
  std::unique_ptr<cluster::RemoteStore> Connect() const {
    return std::make_unique<cluster::RemoteStore>(rpc::ConnectGrpc(address_).value(), kTestTimeout);
  }
  TandemProcess& process() { return *process_; }

 private:
  const std::string data_;
  std::string address_ = "127.0.77.5:0";
  std::unique_ptr<TandemProcess> process_;
};

TEST(TandemStore, GoesOnWhereItWasWhenItIsKilledAndStartedAgain) {
  TempDir directory;
  ServedStore served(directory.File("made/by/it"));
  const auto client = served.Connect();
  for (int life = 1; life <= 3; ++life) {
    EXPECT_EQ(client->Add("lives", 1).value(), life);
    TANDEM_ASSERT_OK(client->Push("queue", absl::StrCat("of life ", life)));
    served.Kill();
    served.Start();
  }
  for (int life = 1; life <= 3; ++life) {
    EXPECT_EQ(client->Pop("queue", kTestTimeout).value(), absl::StrCat("of life ", life));
  }
  served.process().Signal(SIGTERM);
  EXPECT_EQ(served.process().Wait(), 0) << served.process().err();
}

TEST(TandemStore, RefusesADirectoryThatAnotherStoreUsesAndNamesIt) {
  TempDir directory;
  ServedStore served(directory.path());
  const Finished second = RunTandem({"store", "--data", directory.path()});
  EXPECT_EQ(second.exit_code, 1);
  EXPECT_THAT(second.err, AllOf(HasSubstr(directory.File("LOCK")),
                                HasSubstr(absl::StrCat("held by process ", served.process().pid()))));
}

}  // namespace
}  // namespace tandem::cli
