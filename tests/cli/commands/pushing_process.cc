// SPDX-License-Identifier: Apache-2.0
#include "tests/cli/commands/pushing_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "base/status.h"
#include "gtest/gtest.h"
#include "tests/cli/commands/exactly_once.h"
#include "tests/testing/processes/processes.h"
#include "tests/testing/status_matchers.h"

namespace tandem::cli {
namespace {

using testing::kTestTimeout;

constexpr uint64_t kMostSteps = uint64_t{1} << 22;
constexpr int kPushesInFlight = 8;
enum StepState : uint8_t { kNotBegun, kBegun, kAcknowledged };

// [step]: a StepState. What a process has written stays when it is killed.
uint8_t* MapLedger(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  TANDEM_CHECK(file >= 0 && ::ftruncate(file, static_cast<off_t>(kMostSteps)) == 0);
  void* const at = ::mmap(nullptr, kMostSteps, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  TANDEM_CHECK(at != MAP_FAILED);
  ::close(file);
  return static_cast<uint8_t*>(at);
}

std::atomic_ref<uint8_t> State(uint8_t* ledger, uint64_t step) {
  TANDEM_CHECK(step < kMostSteps);
  return std::atomic_ref<uint8_t>(ledger[step]);
}

std::string Variable(const char* name) {
  const char* const text = std::getenv(name);
  TANDEM_CHECK_MSG(text != nullptr, name);
  return text;
}

uint32_t NumberOf(const char* name) {
  uint32_t value = 0;
  TANDEM_CHECK_MSG(absl::SimpleAtoi(Variable(name), &value), name);
  return value;
}

// The process.
TEST(PushingProcessChild, DISABLED_Pushes) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const uint32_t worker = NumberOf("TANDEM_TEST_WORKER"), servers = NumberOf("TANDEM_TEST_SERVERS"),
                 dim = NumberOf("TANDEM_TEST_DIM"), progress = NumberOf("TANDEM_TEST_PROGRESS");
  ShardAddresses addresses{.store = Variable("TANDEM_TEST_STORE"), .copies = {}};
  for (const absl::string_view shard : absl::StrSplit(Variable("TANDEM_TEST_COPIES"), ';')) {
    addresses.copies.push_back(absl::StrSplit(shard, ','));
  }
  uint8_t* const ledger = MapLedger(Variable("TANDEM_TEST_LEDGER"));
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<ps::Client> client,
                              ConnectToShards(addresses, {.worker = worker, .timeout = 2 * kTestTimeout}));
  TANDEM_ASSERT_OK(client->StartPushEpoch());
  TANDEM_ASSERT_OK(client->CreateTable(
      CountingTable(dim, AllModes()[NumberOf("TANDEM_TEST_MODE")].mode, NumberOf("TANDEM_TEST_WORKERS"))));
  absl::Mutex mutex;
  int in_flight = 0;
  bool told = false;
  const std::vector<uint64_t> shared = SharedIds(servers);
  const std::vector<float> gradients(2 * shared.size() * dim, -1.0f);
  const uint64_t first = NumberOf("TANDEM_TEST_STEP");
  // In bounded mode the others wait for each step: those that an earlier life has lost are pushed without
  // rows. A server that has one refuses it.
  for (uint64_t step = 0; step < first; ++step) {
    if (State(ledger, step) == kAcknowledged) continue;
    const absl::Status again = client->Push(step, {{.table = "t", .ids = {}, .gradients = nullptr}});
    ASSERT_TRUE(again.ok() || absl::StrContains(again.message(), "already pushed")) << again;
  }
  for (uint64_t step = first;; ++step) {
    {
      absl::MutexLock lock(&mutex);
      const auto free = [&] { return in_flight < kPushesInFlight; };
      mutex.Await(absl::Condition(&free));
      ++in_flight;
    }
    State(ledger, step) = kBegun;
    std::vector<uint64_t> ids = IdsOfPush(worker, step, servers);
    ids.insert(ids.end(), shared.begin(), shared.end());
    client->PushAsync(step, {{.table = "t", .ids = ids, .gradients = gradients.data()}}, {},
                      [&, step](const absl::Status& status) {
                        // The test sees that this process has ended.
                        if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
                        if (!status.ok()) std::_Exit(1);
                        State(ledger, step) = kAcknowledged;
                        absl::MutexLock lock(&mutex);
                        --in_flight;
                        if (!std::exchange(told, true) && ::write(static_cast<int>(progress), "", 1) != 1) {
                          std::_Exit(1);
                        }
                      });
  }
}

}  // namespace

PushingProcess::PushingProcess(const Options& options) : options_(options) {
  TANDEM_CHECK(::pipe(progress_) == 0);
  ledger_ = MapLedger(directory_.path() + "/ledger");
}

PushingProcess::~PushingProcess() {
  process_.reset();
  ::munmap(ledger_, kMostSteps);
  for (const int end : progress_) ::close(end);
}

bool PushingProcess::Start(const ShardAddresses& addresses) {
  const std::string copies =
      absl::StrJoin(addresses.copies, ";", [](std::string* out, const std::vector<std::string>& shard) {
        absl::StrAppend(out, absl::StrJoin(shard, ","));
      });
  process_ = std::make_unique<testing::SelfProcess>(
      "PushingProcessChild.DISABLED_Pushes",
      std::map<std::string, std::string>{{"TANDEM_TEST_WORKER", absl::StrCat(options_.worker)},
                                         {"TANDEM_TEST_WORKERS", absl::StrCat(options_.workers)},
                                         {"TANDEM_TEST_SERVERS", absl::StrCat(options_.servers)},
                                         {"TANDEM_TEST_DIM", absl::StrCat(options_.dim)},
                                         {"TANDEM_TEST_MODE", absl::StrCat(options_.mode)},
                                         {"TANDEM_TEST_STEP", absl::StrCat(begun())},
                                         {"TANDEM_TEST_PROGRESS", absl::StrCat(progress_[1])},
                                         {"TANDEM_TEST_LEDGER", directory_.path() + "/ledger"},
                                         {"TANDEM_TEST_STORE", addresses.store},
                                         {"TANDEM_TEST_COPIES", copies}});
  const int ended = testing::OpenPidfd(process_->pid());
  pollfd polled[2] = {{progress_[0], POLLIN, 0}, {ended, POLLIN, 0}};
  const absl::Time deadline = MonotonicNow() + kTestTimeout;
  while (MonotonicNow() < deadline) {
    const auto left = static_cast<int>(absl::ToInt64Milliseconds(deadline - MonotonicNow())) + 1;
    if (::poll(polled, 2, left) > 0) break;
  }
  if (ended >= 0) ::close(ended);
  char byte;
  return polled[0].revents != 0 && ::read(progress_[0], &byte, 1) == 1;
}

bool PushingProcess::Kill() {
  const bool alive = testing::IsAlive(process_->pid());
  process_->Kill();
  return alive;
}

uint64_t PushingProcess::begun() const {
  uint64_t step = 0;
  while (step < kMostSteps && State(ledger_, step) != kNotBegun) ++step;
  return step;
}

uint64_t PushingProcess::acknowledged() const {
  return static_cast<uint64_t>(std::count(ledger_, ledger_ + begun(), kAcknowledged));
}

absl::StatusOr<std::vector<uint64_t>> PushingProcess::PushesOnServers(ps::Client& client) const {
  constexpr uint64_t kStepsInAPull = 8192;
  std::vector<uint64_t> counts(options_.servers);
  const uint64_t end = begun();
  for (uint64_t from = 0; from < end; from += kStepsInAPull) {
    const uint64_t to = std::min(end, from + kStepsInAPull);
    std::vector<uint64_t> ids;
    for (uint64_t step = from; step < to; ++step) {
      const std::vector<uint64_t> own = IdsOfPush(options_.worker, step, options_.servers);
      ids.insert(ids.end(), own.begin(), own.end());
    }
    std::vector<float> rows(ids.size() * options_.dim, -1.0f);
    TANDEM_RETURN_IF_ERROR(client.Pull(0, true, {{.table = "t", .ids = ids, .rows = rows.data()}}).status());
    for (size_t i = 0; i < ids.size(); ++i) {
      const float value = rows[i * options_.dim];
      const uint64_t step = from + i / options_.servers, server = i % options_.servers;
      const bool acknowledged = State(ledger_, step) == kAcknowledged;
      if (value != 1.0f && (acknowledged || value != 0.0f)) {
        return absl::DataLossError(absl::StrCat("a push of the worker process, step ", step, ", ",
                                                acknowledged ? "" : "not ", "acknowledged, counts ", value,
                                                " times on server ", server, "; it began ", end));
      }
      counts[server] += static_cast<uint64_t>(value);
    }
  }
  return counts;
}

}  // namespace tandem::cli
