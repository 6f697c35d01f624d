// SPDX-License-Identifier: Apache-2.0
#include "tests/collectives/backends/mpi/mpi_ranks.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cluster/store/file_store.h"
#include "collectives/backends/mpi/mpi_backend.h"
#include "tests/testing/status_matchers.h"

namespace tandem::collectives {
namespace {

std::string Path() {
  const char* job = std::getenv("PMIX_NAMESPACE");
  return absl::StrCat(::testing::TempDir(), "/tandem_mpi_", job == nullptr ? "0" : job, "_", getppid());
}

int Variable(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? -1 : std::atoi(text);
}

}  // namespace

int MpiRanks::rank_ = -1;
int MpiRanks::world_size_ = 0;
std::unique_ptr<cluster::Store> MpiRanks::store_;

void MpiRanks::SetUpTestSuite() {
  rank_ = Variable("OMPI_COMM_WORLD_RANK");
  world_size_ = Variable("OMPI_COMM_WORLD_SIZE");
  ASSERT_GE(rank_, 0) << "to be run by mpirun";
  if (store_ != nullptr) return;
  auto store = cluster::FileStore::Open(Path());
  TANDEM_ASSERT_OK(store);
  store_ = *std::move(store);
}

void MpiRanks::Leave() {
  if (store_ == nullptr) return;
  (void)store_->Set(absl::StrCat("over/", rank_), "");
  std::vector<std::string> keys;
  for (int rank = 0; rank < world_size_; ++rank) keys.push_back(absl::StrCat("over/", rank));
  if (rank_ == 0) (void)store_->Wait(keys, kTimeout);
  store_.reset();
  if (rank_ == 0) unlink(Path().c_str());
}

// Runs after the last test of all suites.
class LeaveAtEnd final : public ::testing::Environment {
 public:
  void TearDown() override { MpiRanks::Leave(); }
};
const ::testing::Environment* const kLeaveAtEnd = ::testing::AddGlobalTestEnvironment(new LeaveAtEnd);

void MpiRanks::AwaitAllRanks(const std::string& where) {
  const std::string prefix =
      absl::StrCat(::testing::UnitTest::GetInstance()->current_test_info()->name(), "/", where, "/");
  TANDEM_ASSERT_OK(store_->Set(absl::StrCat(prefix, rank_), ""));
  std::vector<std::string> keys;
  for (int rank = 0; rank < world_size_; ++rank) keys.push_back(absl::StrCat(prefix, rank));
  TANDEM_ASSERT_OK(store_->Wait(keys, kTimeout));
}

absl::StatusOr<std::unique_ptr<Backend>> MpiRanks::Make(const std::string& group, std::vector<int> ranks) {
  if (ranks.empty()) {
    for (int rank = 0; rank < world_size_; ++rank) ranks.push_back(rank);
  }
  const std::string name =
      absl::StrCat(::testing::UnitTest::GetInstance()->current_test_info()->name(), "/", group);
  stores_.push_back(std::make_unique<cluster::PrefixStore>(store_.get(), name));
  BackendOptions options;
  options.group = group;
  options.rank = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin());
  options.world_size = static_cast<int>(ranks.size());
  options.store = stores_.back().get();
  options.peers.resize(ranks.size());
  options.deadline = absl::Now() + kTimeout;
  options.timeout = kTimeout;
  const BackendFactory factory = MpiBackendFactory();
  if (absl::Status status = factory.viable(options); !status.ok()) return status;
  return factory.make(options);
}

}  // namespace tandem::collectives
