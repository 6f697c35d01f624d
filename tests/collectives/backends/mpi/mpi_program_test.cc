// SPDX-License-Identifier: Apache-2.0
// A program that uses MPI itself, next to a group. Its argument is the thread level that it requests.

#include <mpi.h>

#include <cstdio>
#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "cluster/store/memory_store.h"
#include "collectives/backends/mpi/mpi_backend.h"

namespace {

#define EXPECT(condition) \
  if (!(condition)) return std::fprintf(stderr, "not so: %s\n", #condition), 1

int Run(bool threads) {
  namespace c = tandem::collectives;
  tandem::cluster::MemoryStore store;
  c::BackendOptions options;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &options.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  options.world_size = size;
  options.store = &store;
  options.peers.resize(size);
  options.deadline = absl::Now() + absl::Seconds(30);
  options.timeout = absl::Seconds(30);
  for (int rank = 0; rank < size; ++rank) {  // what the others would say
    const char* job = std::getenv("PMIX_NAMESPACE");
    if (rank != options.rank) {
      (void)store.Set("rank/" + std::to_string(rank),
                      std::to_string(rank) + "/" + (job == nullptr ? "" : job));
    }
  }
  const c::BackendFactory factory = c::MpiBackendFactory();
  EXPECT(factory.viable(options).ok());
  auto backend = factory.make(options);
  if (!threads) {
    EXPECT(absl::IsFailedPrecondition(backend.status()));
    EXPECT(absl::StrContains(backend.status().message(), "MPI_THREAD_SERIALIZED"));
    return 0;
  }
  if (!backend.ok()) return std::fprintf(stderr, "%s\n", backend.status().ToString().c_str()), 1;
  int32_t value = 1, theirs = 1;
  c::Operation sum;
  sum.kind = c::OpKind::kAllReduce;
  sum.dtype = tandem::DType::kI32;
  sum.timeout = absl::Seconds(30);
  sum.in = {&value, 1};
  sum.out = {&value, 1};
  const absl::Status status = (*backend)->Run(sum);
  if (!status.ok()) return std::fprintf(stderr, "%s\n", status.ToString().c_str()), 1;
  MPI_Allreduce(MPI_IN_PLACE, &theirs, 1, MPI_INT32_T, MPI_SUM, MPI_COMM_WORLD);
  EXPECT(value == size && theirs == size);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const bool threads = argc > 1 && absl::string_view(argv[1]) == "multiple";
  int provided = 0;
  MPI_Init_thread(&argc, &argv, threads ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE, &provided);
  const int result = Run(threads);
  MPI_Finalize();
  return result;
}
