// SPDX-License-Identifier: Apache-2.0
#include "base/cuda/library_search.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace tandem::cuda {
namespace {

namespace fs = std::filesystem;

constexpr const char* kCudartNames[] = {"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0"};

std::string Variable(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}

// Returns the subfolders of `folder` whose names begin with `prefix`, the last name first.
std::vector<fs::path> Subfolders(const fs::path& folder, absl::string_view prefix) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (absl::StartsWith(it->path().filename().string(), prefix)) found.push_back(it->path());
  }
  std::sort(found.rbegin(), found.rend());
  return found;
}

// The wheels of CUDA 12 have a folder for each library, those of CUDA 13 one for all: nvidia/nccl/lib,
// nvidia/cuda_runtime/lib, nvidia/cu13/lib.
void AddWheels(const fs::path& site_packages, std::vector<fs::path>* folders) {
  folders->push_back(site_packages / "nvidia" / "nccl" / "lib");
  for (const fs::path& all : Subfolders(site_packages / "nvidia", "cu1")) folders->push_back(all / "lib");
  folders->push_back(site_packages / "nvidia" / "cuda_runtime" / "lib");
}

std::vector<fs::path> Folders(const SearchPlaces& places) {
  std::vector<fs::path> folders;
  for (const std::string& prefix : places.prefixes) {
    if (prefix.empty()) continue;
    folders.push_back(fs::path(prefix) / "lib");  // conda's own packages
    for (const fs::path& python : Subfolders(fs::path(prefix) / "lib", "python"))
      AddWheels(python / "site-packages", &folders);
  }
  // .../site-packages/tandem/_core.so and .../site-packages/tandem/bin/tandem
  for (fs::path folder = places.own_folder; folder.has_relative_path(); folder = folder.parent_path()) {
    if (folder.filename() == "site-packages" || folder.filename() == "dist-packages")
      AddWheels(folder, &folders);
  }
  for (const std::string& home : places.cuda_homes) {
    if (!home.empty()) folders.push_back(fs::path(home) / "lib64");
  }
  return folders;
}

void AddIfPresent(const fs::path& file, std::vector<std::string>* candidates) {
  std::error_code error;
  if (fs::exists(file, error)) candidates->push_back(file.string());
}

void AddCandidates(const SearchPlaces& places, absl::Span<const fs::path> folders, const std::string& name,
                   std::vector<std::string>* candidates) {
  for (absl::string_view folder : absl::StrSplit(places.named, ':', absl::SkipEmpty()))
    AddIfPresent(fs::path(std::string(folder)) / name, candidates);
  candidates->push_back(name);
  for (const fs::path& folder : folders) AddIfPresent(folder / name, candidates);
}

}  // namespace

SearchPlaces PlacesOfThisProcess() {
  SearchPlaces places;
  places.named = Variable("TANDEM_CUDA_LIBRARY_PATH");
  places.prefixes = {Variable("VIRTUAL_ENV"), Variable("CONDA_PREFIX")};
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(&PlacesOfThisProcess), &info) != 0 && info.dli_fname != nullptr) {
    std::error_code error;
    places.own_folder = fs::weakly_canonical(info.dli_fname, error).parent_path().string();
  }
  places.cuda_homes = {Variable("CUDA_HOME"), Variable("CUDA_PATH"), "/usr/local/cuda"};
  for (const fs::path& version : Subfolders("/usr/local", "cuda-"))
    places.cuda_homes.push_back(version.string());
  return places;
}

std::vector<std::string> LibraryCandidates(const SearchPlaces& places, const std::string& name) {
  std::vector<std::string> candidates;
  AddCandidates(places, Folders(places), name, &candidates);
  return candidates;
}

std::vector<std::string> CudartCandidates(const SearchPlaces& places) {
  const std::vector<fs::path> folders = Folders(places);
  std::vector<std::string> candidates;
  for (const char* name : kCudartNames) AddCandidates(places, folders, name, &candidates);
  return candidates;
}

absl::StatusOr<Loaded<CudaApi>> ChooseCudart(
    absl::Span<const std::string> candidates,
    const std::function<absl::StatusOr<Loaded<CudaApi>>(const std::string&)>& load) {
  Loaded<CudaApi> first;
  absl::Status error = absl::FailedPreconditionError("libcudart not found");
  for (const std::string& candidate : candidates) {
    absl::StatusOr<Loaded<CudaApi>> loaded = load(candidate);
    if (!loaded.ok()) {
      // A file that exists and cannot be used says more than one that does not exist.
      if (!absl::StrContains(loaded.status().message(), "not found")) error = loaded.status();
      continue;
    }
    int devices = 0;
    if (loaded->api->GetDeviceCount(&devices) == kCudaSuccess && devices > 0) return loaded;
    loaded->api->GetLastError();
    if (first.api == nullptr) first = *std::move(loaded);
  }
  if (first.api != nullptr) return first;
  if (absl::StrContains(error.message(), "not found")) {
    return absl::FailedPreconditionError(absl::StrCat(
        "libcudart not found (", candidates.size(),
        " names and files were tried, from libcudart.so.13 to libcudart.so.11.0); install CUDA's "
        "runtime, or name its folder in TANDEM_CUDA_LIBRARY_PATH"));
  }
  return error;
}

}  // namespace tandem::cuda
