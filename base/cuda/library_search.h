// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BASE_CUDA_LIBRARY_SEARCH_H_
#define TANDEM_BASE_CUDA_LIBRARY_SEARCH_H_

// Where libnccl and libcudart are looked for: the folders that TANDEM_CUDA_LIBRARY_PATH names, the system's
// library path (with LD_LIBRARY_PATH, and libraries that the process has loaded already), the wheels
// nvidia-nccl-* and nvidia-cuda-runtime-* of a Python environment, CUDA's own folder.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/cuda/cuda_api.h"

namespace tandem::cuda {

struct SearchPlaces {
  std::string named;                    // folders separated by ':', searched before all others
  std::vector<std::string> prefixes;    // of Python environments: VIRTUAL_ENV, CONDA_PREFIX
  std::string own_folder;               // the folder of this code's library: maybe in a site-packages
  std::vector<std::string> cuda_homes;  // CUDA_HOME, /usr/local/cuda
};
// Returns the places of this process.
SearchPlaces PlacesOfThisProcess();

// Returns the arguments for dlopen, the preferred one first: files that exist, and plain names, which stand
// for the system's library path. Of several versions of cudart the newest comes first.
std::vector<std::string> LibraryCandidates(const SearchPlaces& places, const std::string& name);
std::vector<std::string> CudartCandidates(const SearchPlaces& places);

// A library and the file that it was loaded from.
template <typename Api>
struct Loaded {
  std::shared_ptr<Api> api;
  std::string path;
};

// Returns the first library of `candidates` that finds a device. A driver refuses libraries that are newer
// than it is, so that an older one can find devices which a newer one does not. If none does, returns the
// first that loads. FailedPrecondition, naming the libraries, if none loads.
absl::StatusOr<Loaded<CudaApi>> ChooseCudart(
    absl::Span<const std::string> candidates,
    const std::function<absl::StatusOr<Loaded<CudaApi>>(const std::string&)>& load);

}  // namespace tandem::cuda

#endif  // TANDEM_BASE_CUDA_LIBRARY_SEARCH_H_
