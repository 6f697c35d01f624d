// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_COLLECTIVES_BACKENDS_MPI_MPI_RANKS_H_
#define TANDEM_TESTS_COLLECTIVES_BACKENDS_MPI_MPI_RANKS_H_

// One rank of a test that mpirun has started: all ranks run the same tests in the same order.

#include <memory>
#include <string>
#include <vector>

#include "cluster/store/prefix_store.h"
#include "cluster/store/store.h"
#include "collectives/backend.h"
#include "gtest/gtest.h"

namespace tandem::collectives {

class MpiRanks : public ::testing::Test {
 public:
  // Removes the ranks' store, on rank 0, when all ranks have come.
  static void Leave();

 protected:
  static void SetUpTestSuite();

  // Makes the backend of a group of `ranks` of this test (all, if empty), which must contain this rank.
  absl::StatusOr<std::unique_ptr<Backend>> Make(const std::string& group, std::vector<int> ranks = {});
  // Waits, through the store, until all ranks have called it.
  void AwaitAllRanks(const std::string& where);

  static int rank() { return rank_; }
  static int world_size() { return world_size_; }
  static cluster::Store* store() { return store_.get(); }
  static constexpr absl::Duration kTimeout = absl::Seconds(60);

 private:
  static int rank_, world_size_;
  static std::unique_ptr<cluster::Store> store_;
  std::vector<std::unique_ptr<cluster::Store>> stores_;
};

}  // namespace tandem::collectives

#endif  // TANDEM_TESTS_COLLECTIVES_BACKENDS_MPI_MPI_RANKS_H_
