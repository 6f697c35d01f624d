// SPDX-License-Identifier: Apache-2.0
// `tandem store` as users start it, also when it is killed.

#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "cluster/join.h"
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

// A store of the program, on a disk unless `data` is empty. Started again, it serves at the same address.
class ServedStore {
 public:
  explicit ServedStore(const std::string& data) : data_(data) { Start(); }
  void Start() {
    std::vector<std::string> args = {"store", "--listen", address_};
    if (!data_.empty()) args.insert(args.end(), {"--data", data_});
    process_ = std::make_unique<TandemProcess>(args);
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
    return std::make_unique<cluster::RemoteStore>(cluster::ConnectStore(address_).value(), kTestTimeout);
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

// Returns the median of the milliseconds that calls take.
double MedianMs(int calls, const std::function<void(int call)>& body) {
  std::vector<double> times;
  for (int i = 0; i < calls; ++i) {
    const absl::Time begin = MonotonicNow();
    body(i);
    times.push_back(absl::ToDoubleMilliseconds(MonotonicNow() - begin));
  }
  std::nth_element(times.begin(), times.begin() + calls / 2, times.end());
  return times[static_cast<size_t>(calls / 2)];
}

// Measures changes with and without a disk. TANDEM_STORE_CHANGES=1000 is the long form.
TEST(TandemStore, CountsEveryChangeOfManyClientsWithAndWithoutADisk) {
  const char* const more = std::getenv("TANDEM_STORE_CHANGES");
  const int changes = more == nullptr ? 20 : std::atoi(more);
  constexpr int kClients = 16;
  TempDir directory;
  for (const std::string& data : {std::string(), directory.File("d")}) {
    const ServedStore served(data);
    const auto client = served.Connect();
    const double set = MedianMs(changes, [&](int i) { TANDEM_EXPECT_OK(client->Set("k", absl::StrCat(i))); });
    const double compare = MedianMs(changes, [&](int i) {
      EXPECT_EQ(client->CompareSet("c", i == 0 ? "" : absl::StrCat(i - 1), absl::StrCat(i)).value(),
                absl::StrCat(i));
    });
    const absl::Time begin = MonotonicNow();
    std::vector<std::thread> clients;
    for (int c = 0; c < kClients; ++c) {
      clients.emplace_back([&] {
        const auto own = served.Connect();
        for (int i = 0; i < changes; ++i) TANDEM_EXPECT_OK(own->Add("sum", 1));
      });
    }
    for (std::thread& thread : clients) thread.join();
    const double seconds = absl::ToDoubleSeconds(MonotonicNow() - begin);
    EXPECT_EQ(client->Add("sum", 0).value(), kClients * changes);
    std::printf("%-10s Set %.2f ms, CompareSet %.2f ms (medians of %d); %d clients: %.0f changes/s\n",
                data.empty() ? "in memory:" : "on disk:", set, compare, changes, kClients,
                kClients * changes / seconds);
  }
}

}  // namespace
}  // namespace tandem::cli
